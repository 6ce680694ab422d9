# The image of a worker: docs/how-to/containers.md. `make image` builds it, also where no image can
# be pulled. The base is Debian with Python 3.11 or newer and its venv module.
ARG BASE=python:3.11-slim

# Dependencies have a layer of their own, which stays the same as long as they do.
FROM ${BASE} AS dependencies
ARG EXTRAS=redis,aws
# An index of your own, and certificates to verify it with. Neither stays in the image.
ARG PIP_INDEX_URL
ARG PIP_CERT
WORKDIR /source
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/sublet
# pip stays behind; what it installs goes to /opt/sublet.
ENV PATH=/opt/pip/bin:$PATH PIP_PYTHON=/opt/sublet/bin/python PIP_NO_CACHE_DIR=1
COPY deploy/image/requirements.py pyproject.toml requirements.lock ./
# The lock constrains versions only; what is installed is what the project needs to run.
RUN python3 requirements.py pyproject.toml "${EXTRAS}" > requirements.txt \
    && pip install --constraint requirements.lock --requirement requirements.txt

# The stage in which images of your own install further packages: sublet:build.
FROM dependencies AS build
COPY . .
RUN pip install --no-deps --no-warn-script-location --root /installed .

FROM ${BASE}
# Nothing is installed at run time, so there is no pip, where the base brings one.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin sublet \
    && install --directory --owner sublet --group sublet /data /app \
    && if python3 -m pip --version > /dev/null 2>&1; then \
        python3 -m pip uninstall --yes --quiet --root-user-action ignore setuptools wheel pip; fi
COPY --from=dependencies /opt/sublet /opt/sublet
COPY --from=build /installed/opt/sublet /opt/sublet
COPY deploy/image/health_check.py /opt/sublet/health_check.py
# In a container all addresses are those of its own network. What a worker tells others is the
# container's address, or SUBLET_ADVERTISE; never 0.0.0.0.
ENV PATH=/opt/sublet/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SUBLET_HOST=0.0.0.0 \
    SUBLET_ALLOW_REMOTE=1 \
    SUBLET_PORT=7337 \
    SUBLET_HTTP_PORT=8080 \
    SUBLET_DATA_DIR=/data
# A numeric user lets Kubernetes see that it is not root.
USER 10001
WORKDIR /app
VOLUME /data
EXPOSE 7337 8080
# A worker drains when it is told to stop; give it longer than drain_timeout_s (30 s).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-S", "-E", "/opt/sublet/health_check.py"]
ENTRYPOINT ["sublet"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Sublet" \
    org.opencontainers.image.description="Stateful functions in Python: durable, exactly once, most urgent work first." \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}"
