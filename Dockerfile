# A broker in a container: no Java, no root. See docs/operations/service.md.
FROM python:3.13.7-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml hatch_build.py requirements.lock README.md LICENSE ./
COPY journal ./journal
COPY zk ./zk
COPY meta_client ./meta_client
COPY meta_broker ./meta_broker
COPY spark_jobs ./spark_jobs
# The versions of the lock file, also of what builds; only what a broker needs is installed. Without its native core a
# broker would run, at half the speed, and nobody would notice.
RUN grep -oE '^[A-Za-z0-9._-]+==[^ ;\\]+' requirements.lock > constraints.txt \
    && export PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt \
    && python -m venv /opt/metaq \
    && /opt/metaq/bin/pip install --no-cache-dir --disable-pip-version-check . \
    && cd / && /opt/metaq/bin/metaq --version | grep 'native core'

FROM python:3.13.7-slim-bookworm
RUN groupadd --gid 10001 metaq \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/metaq --no-create-home --no-log-init metaq \
    && install --directory --owner metaq --group metaq --mode 0700 /var/lib/metaq
COPY --from=build /opt/metaq /opt/metaq
ENV PATH=/opt/metaq/bin:$PATH PYTHONUNBUFFERED=1 METAQ_HEALTH=http://127.0.0.1:9123/health/live
USER 10001:10001
VOLUME /var/lib/metaq
EXPOSE 8123 9123
STOPSIGNAL SIGTERM
# The certificate of a broker names its host, not 127.0.0.1: who answers there is this container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", \
    "import os, ssl, urllib.request as u; u.urlopen(os.environ['METAQ_HEALTH'], timeout=4, context=ssl._create_unverified_context())"]
ENTRYPOINT ["metaq"]
CMD ["broker", "--data", "/var/lib/metaq/data", "--id", "0", "--config", "/etc/metaq/broker.toml", "--admin-port", "9123"]
