FROM python:3.11-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY requirements.lock /tmp/requirements.lock
COPY --from=build /wheels /wheels
# The lock constrains versions only; what is installed is what the wheel needs to run.
RUN pip install --no-cache-dir --constraint /tmp/requirements.lock /wheels/*.whl \
    && rm -r /wheels /tmp/requirements.lock \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin sublet
# A numeric user lets Kubernetes see that it is not root.
USER 10001
WORKDIR /home/sublet
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["sublet"]
