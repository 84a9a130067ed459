# plusgpt with the CUDA toolkit, on x86-64 or AArch64. This file has not been built or run by its authors yet: no Docker
# was at hand.
#   docker build -t plusgpt .                                 builds for A100 and H100/H200; ARCH chooses other targets
#   docker run --gpus all -v "$PWD:/work" -w /work plusgpt    configs/gpt2_124m_lssar.json
#   docker run --rm --entrypoint bash plusgpt scripts/test.sh every test that needs no GPU
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04
ARG ARCH="80 90a"
COPY . /plusgpt
WORKDIR /plusgpt
RUN bash scripts/install_deps.sh --tests \
 && make BACKEND=cuda ARCH="$ARCH" train tests
ENTRYPOINT ["/plusgpt/train"]
