# The interpreter of the suite with the packages of its lock file, for a checkout that is mounted. docs/several-machines.md
# says how to build and run it. CUDA's libraries come with torch's wheels; the host needs NVIDIA's driver and its toolkit for
# containers. Another base, Debian or Ubuntu: --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
ARG BASE=debian:12-slim
FROM ${BASE}

# torch.compile needs a compiler and Python.h at run time; the suite needs git, for the commit of each row, and make; NCCL
# reaches InfiniBand through libibverbs and its drivers.
# Debian's archive has one version of a package at a time, so that a version that is named here would soon be gone.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ git ibverbs-providers libibverbs1 make python3 \
       python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Read by NVIDIA's and Mellanox's hooks of docker, and of enroot, which pyxis calls: else a container has no GPU and no
# InfiniBand.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility MELLANOX_VISIBLE_DEVICES=all

# The number of the user who owns the checkout: git refuses folders that are somebody else's. A base may have it already.
ARG UID=1000
RUN useradd --create-home --non-unique --uid "$UID" bench \
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
