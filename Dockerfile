# The interpreter of the suite with the packages of its lock file, for a checkout that is mounted. launchers/README.md
# says how to build and run it. CUDA's libraries come with torch's wheels; the host needs NVIDIA's driver and toolkit for
# containers only. Another base, such as one pinned by its digest: --build-arg BASE=debian:12-slim@sha256:...
ARG BASE=debian:12-slim
FROM ${BASE}

# torch.compile needs a compiler and Python.h at run time; the suite needs git, for the commit of each row, and make.
# Debian's archive has one version of a package at a time, so that a version that is named here would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# The number of the user who owns the checkout: git refuses folders that are somebody else's.
ARG UID=1000
RUN useradd --create-home --uid "$UID" bench \
    && install --directory --owner bench --group bench /opt/setup /opt/venv
USER ${UID}
WORKDIR /opt/setup

# What set-up needs, so that another change of the checkout installs nothing again.
COPY requirements.txt requirements.lock requirements-torch2.10.lock ./
COPY benchmarks/__init__.py benchmarks/
COPY benchmarks/common/__init__.py benchmarks/common/errors.py benchmarks/common/files.py \
     benchmarks/common/machine.py benchmarks/common/
COPY scripts/__init__.py scripts/
COPY scripts/setup/ scripts/setup/
COPY scripts/shared/ scripts/shared/

# Each package is checked against its hash. TORCH=2.10 is for Volta, such as V100.
ARG TORCH=
RUN TORCH="$TORCH" python3 -m scripts.setup.install /opt/venv && rm -rf ~/.cache

ENV PATH=/opt/venv/bin:$PATH PYTHON=/opt/venv/bin/python SETUP=no
