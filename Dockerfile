# A broker in a container: no Java, no root. See docs/operations/service.md.
FROM python:3.13.7-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py requirements.lock README.md LICENSE ./
COPY journal ./journal
COPY zk ./zk
COPY meta_client ./meta_client
COPY meta_broker ./meta_broker
COPY spark_jobs ./spark_jobs
# The versions of the lock file; only what a broker needs of them is installed.
RUN grep -oE '^[A-Za-z0-9._-]+==[^ ;\\]+' requirements.lock > constraints.txt \
    && python -m venv /opt/metaq \
    && /opt/metaq/bin/pip install --no-cache-dir --disable-pip-version-check --constraint constraints.txt .

FROM python:3.13.7-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/metaq --create-home metaq
COPY --from=build /opt/metaq /opt/metaq
ENV PATH=/opt/metaq/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /var/lib/metaq
EXPOSE 8123 9123
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9123/health/live', timeout=4)"]
ENTRYPOINT ["metaq"]
CMD ["broker", "--data", "/var/lib/metaq/data", "--id", "0", "--config", "/etc/metaq/broker.toml", "--admin-port", "9123"]
