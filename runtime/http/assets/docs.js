// Sends requests from the docs page and shows the replies. Whatever comes from a function is shown as
// text, never as markup. Addresses are relative to the page: a proxy may have put a prefix before them.
"use strict";

const base = new URL(".", location.href).href.replace(/\/$/, "");

function element(name, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
}

function pathOf(form, start) {
  const key = form.elements.key ? form.elements.key.value : "";
  const [app, name] = form.dataset.function.split("/").map(encodeURIComponent);
  return `${start}/${app}/${name}` + (key ? `/${encodeURIComponent(key)}` : "");
}

function callOf(form) {
  const { body, mode, deadline, idempotency } = form.elements;
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (deadline.value) headers["Sublet-Deadline"] = deadline.value;
  if (idempotency.value) headers["Idempotency-Key"] = idempotency.value;
  const query = mode.value === "send" ? "?mode=send" : "";
  return { method: "POST", path: pathOf(form, "functions") + query, headers, body: body && body.value };
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function curlOf({ method, path, headers, body }) {
  const address = `${base}/${path}`;
  const lines = [`curl ${/[^\w:/.%-]/.test(address) ? quoted(address) : address}`];
  if (method === "POST" && body === undefined) lines[0] = lines[0].replace("curl", "curl -X POST");
  for (const [name, value] of Object.entries(headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (body !== undefined) lines.push(`-d ${quoted(compact(body))}`);
  return lines.join(" \\\n  ");
}

function compact(text) {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return text;
  }
}

function pretty(text, type) {
  if (!/json/.test(type)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function sent(request) {
  const { method, path, headers, body } = request;
  const started = performance.now();
  const reply = await fetch(`${base}/${path}`, { method, headers, body, cache: "no-store" });
  const text = await reply.text();
  return { reply, text, ms: performance.now() - started };
}

async function show(panel, request) {
  panel.hidden = false;
  panel.replaceChildren(element("p", { className: "muted", textContent: "Waiting for the reply …" }));
  try {
    const { reply, text, ms } = await sent(request);
    const id = reply.headers.get("sublet-request-id");
    const head = element("p", { className: "reply-head" });
    head.append(
      element("span", {
        className: `verdict ${reply.ok ? "good" : "bad"}`,
        textContent: `${reply.status} ${reply.statusText}`.trim(),
      }),
      element("span", { className: "muted", textContent: `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` }),
    );
    if (id) head.append(element("code", { className: "muted", title: "for sublet why", textContent: id }));
    const type = reply.headers.get("content-type") || "";
    const shown = text === "" ? "(empty)" : pretty(text, type);
    panel.replaceChildren(head, element("pre", {}, element("code", { textContent: shown })));
  } catch (error) {
    const told = `No reply: ${error.message}. Is the worker still running?`;
    panel.replaceChildren(element("p", { className: "verdict bad", textContent: told }));
  }
}

function refuse(panel, text) {
  panel.hidden = false;
  panel.replaceChildren(element("p", { className: "verdict bad", textContent: text }));
}

function setUpFunction(form) {
  const panel = form.querySelector(".reply");
  const curl = form.querySelector("[data-curl]");
  const update = () => { curl.textContent = curlOf(callOf(form)); };
  form.addEventListener("input", update);
  update();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const request = callOf(form);
    if (request.body !== undefined) {
      try {
        JSON.parse(request.body);
      } catch (error) {
        refuse(panel, `The message is not JSON: ${error.message}`);
        return;
      }
    }
    show(panel, request);
  });
  const state = form.querySelector("[data-state]");
  if (state) {
    state.addEventListener("click", () => {
      if (form.reportValidity()) show(panel, { method: "GET", path: pathOf(form, "state"), headers: {} });
    });
  }
}

function setUpEgress(form) {
  const panel = form.querySelector(".reply");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { name, from } = form.elements;
    const query = new URLSearchParams({ from: from.value || "start", limit: "20" });
    const path = `egress/${encodeURIComponent(name.value)}/page?${query}`;
    show(panel, { method: "GET", path, headers: {} });
  });
  form.querySelector("[data-list]").addEventListener("click", () => {
    show(panel, { method: "GET", path: "egress", headers: {} });
  });
}

function setUpCopy(button) {
  if (!navigator.clipboard) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

function setUpFilter(input) {
  const named = document.querySelectorAll("[data-name]");
  if (document.querySelectorAll(".function").length < 8) return;
  input.hidden = false;
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const each of named) each.hidden = !each.dataset.name.toLowerCase().includes(wanted);
  });
}

function setUpIndex() {
  const links = new Map();
  for (const link of document.querySelectorAll(".sidebar a")) links.set(link.hash.slice(1), link);
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      for (const link of links.values()) link.classList.remove("current");
      links.get(entry.target.id).classList.add("current");
    }
  }, { rootMargin: "-70px 0px -75% 0px" });
  for (const id of links.keys()) {
    const target = document.getElementById(id);
    if (target) seen.observe(target);
  }
}

async function showStatus(place) {
  try {
    const { reply } = await sent({ method: "GET", path: "ready", headers: {} });
    place.textContent = reply.ok ? "ready" : "not ready";
    place.classList.toggle("good", reply.ok);
  } catch {
    place.textContent = "not reachable";
    place.classList.remove("good");
  }
  place.hidden = false;
}

for (const place of document.querySelectorAll("[data-base]")) place.textContent = base;
document.querySelectorAll("form[data-function]").forEach(setUpFunction);
document.querySelectorAll("form[data-egress]").forEach(setUpEgress);
document.querySelectorAll("[data-copy]").forEach(setUpCopy);
document.querySelectorAll(".filter").forEach(setUpFilter);
setUpIndex();
document.addEventListener("keydown", (event) => {
  const form = event.target.closest && event.target.closest("form.try");
  if (form && event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
const place = document.querySelector("[data-status]");
showStatus(place);
setInterval(() => { if (!document.hidden) showStatus(place); }, 5000);
