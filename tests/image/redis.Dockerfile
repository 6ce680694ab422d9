# Redis of the base's Debian, where Redis' own image cannot be pulled.
ARG BASE
FROM ${BASE}
RUN apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends redis-server \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner redis --group redis /data
USER redis
WORKDIR /data
VOLUME /data
EXPOSE 6379
CMD ["redis-server"]
