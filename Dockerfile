# Images from one file: `gateway` (Python only), `spark` (the mirror: PySpark, Java, Delta, S3A), and `s3` for the profile
# `cluster` of docker-compose.yml. Every package is verified
# against its hash in requirements.lock, every jar against gateway/local/artifacts.lock, the base image against its digest (print the
# current one with `docker buildx imagetools inspect python:3.13-slim`).
ARG PYTHON_IMAGE=python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1
WORKDIR /src
COPY requirements-build.lock ./
RUN python3 -m venv /build && /build/bin/python -m pip install --quiet --no-cache-dir --require-hashes -r requirements-build.lock
ENV PATH=/build/bin:$PATH
COPY pyproject.toml requirements.lock ./
RUN python3 -m venv --without-pip /app \
 && uv pip install --quiet --python /app/bin/python --require-hashes -c requirements.lock -r pyproject.toml

# The hot modules are compiled, which halves CPU time per row (docs/performance.md).
FROM build AS wheel
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null \
 && uv pip install --quiet --python /build/bin/python -c requirements.lock -r pyproject.toml mypy
COPY README.md LICENSE hatch_build.py walgate.py ./
COPY tools/compile_hot.py tools/
COPY gateway/ gateway/
COPY schemas/ schemas/
COPY spark_consumer/ spark_consumer/
COPY pyspark_walgate/ pyspark_walgate/
COPY pyspark_walgate_transactions/ pyspark_walgate_transactions/
RUN WALGATE_COMPILE=1 hatchling build --target wheel

FROM build AS build-gateway
COPY --from=wheel /src/dist/ dist/
RUN uv pip install --quiet --python /app/bin/python --no-deps dist/*.whl

FROM build AS jars
RUN uv pip install --quiet --python /build/bin/python -c requirements.lock jgo httpx2 rich
COPY gateway/ gateway/
COPY schemas/ schemas/
RUN PYTHONPATH=$(echo /app/lib/python3*/site-packages) WALGATE_CACHE=/cache \
        python -c 'from gateway.local.artifacts import fetch_sets; fetch_sets("delta", "s3a", "s3proxy")' \
 && mkdir -p /jars/s3 /jars/spark \
 && find /cache -name 's3proxy-*.jar' -exec mv {} /jars/s3/s3proxy.jar \; && find /cache -name '*.jar' -exec mv -t /jars/spark {} +

FROM build AS build-spark
RUN uv pip install --quiet --python /app/bin/python --require-hashes -b requirements-build.lock -c requirements.lock \
        -r pyproject.toml --extra spark
# Delta's jars and those of s3a:// in Spark's own folder.
COPY --from=jars /jars /jars
RUN cp -t "$(echo /app/lib/python3*/site-packages/pyspark/jars)" /jars/spark/*.jar
COPY --from=wheel /src/dist/ dist/
RUN uv pip install --quiet --python /app/bin/python --no-deps dist/*.whl

FROM ${PYTHON_IMAGE} AS gateway
ARG PROJECT_URL=
LABEL org.opencontainers.image.title="walgate" org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.source="$PROJECT_URL"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp walgate
COPY --from=build-gateway /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["walgate"]
CMD ["run", "--log-format", "json"]

FROM ${PYTHON_IMAGE} AS java
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless procps >/dev/null \
 && rm -rf /var/lib/apt/lists/* && ln -s /usr/lib/jvm/java-21-openjdk-* /usr/lib/jvm/default \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp walgate
ENV JAVA_HOME=/usr/lib/jvm/default

# S3Proxy: the API of S3 over a folder, in which each folder is a bucket.
FROM java AS s3
RUN install -d -o walgate -g walgate /buckets /buckets/lake
COPY --from=jars /jars/s3 /jars
USER 10001
VOLUME /buckets
STOPSIGNAL SIGTERM
ENTRYPOINT ["java", "-Xmx256m", "-jar", "/jars/s3proxy.jar", "--properties"]

FROM java AS spark
ARG PROJECT_URL=
LABEL org.opencontainers.image.title="walgate-spark" org.opencontainers.image.licenses="Apache-2.0" org.opencontainers.image.source="$PROJECT_URL"
RUN install -d -o walgate -g walgate /mirror
COPY --from=build-spark /app /app
ENV WALGATE_SPARK_JARS= PATH=/app/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
VOLUME /mirror
STOPSIGNAL SIGTERM
ENTRYPOINT ["walgate"]
