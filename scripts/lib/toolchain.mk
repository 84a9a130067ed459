# Finds this machine's tools for a build: the compilers and their versions, GPUs, NCCL, PCRE2, oneDNN. Sets BACKEND,
# ARCH, NCCL, HAVE_PCRE2 and HAVE_ONEDNN where the user has not, refuses what cannot work before a compiler's error
# explains it, and ends a build with the summary of what it can do.
BACKEND ?= auto
MARCH ?= native
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v nvcc || echo /usr/local/cuda/bin/nvcc))
NVCC ?= $(CUDA_HOME)/bin/nvcc
OLDEST_CUDA := 12.4
# a comma would end an argument of a function
COMMA := ,
SPACE := $(COMMA:,= )
HAVE_NVCC := $(shell command -v $(NVCC))
# Compute capabilities of the GPUs that are here. The kernels need 8.0 (Ampere) or newer; older cards are left out.
TOO_OLD = $(filter 10 11 12 13 20 21 3% 5% 6% 7%,$(1))
NAMED := nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -x '[0-9.]*'
# A driver may be too old to name them.
GPUS := $(or $(subst .,,$(shell $(NAMED) | sort -u)),$(if $(shell nvidia-smi -L 2>/dev/null | grep ^GPU),unknown))
USABLE_GPUS := $(filter-out $(call TOO_OLD,$(GPUS)),$(GPUS))
ifeq ($(BACKEND),auto)
  ifneq ($(and $(USABLE_GPUS),$(HAVE_NVCC)),)
    override BACKEND := cuda
  else
    override BACKEND := cpu
    WITHOUT_GPU := $(if $(USABLE_GPUS),a GPU$(COMMA) for lack of nvcc: install CUDA $(OLDEST_CUDA) or later and run \
      make again,$(if \
      $(GPUS),the GPU$(COMMA) of compute capability $(GPUS): the kernels need 80 (Ampere) or newer,$(if \
      $(HAVE_NVCC),a GPU: nvidia-smi shows none here; make BACKEND=cuda builds for one elsewhere)))
  endif
endif
ifneq ($(filter-out 32 64 96 128,$(HEAD_DIM)),)
  $(error HEAD_DIM=$(HEAD_DIM): attention kernels exist for 32 64 96 128; other heads use the next of them, or the \
    general kernels in several chunks)
endif
LIST = $(shell echo $(1) | tr ' ' ,)
# The general kernels have no width of 96.
WIDTHS := $(if $(HEAD_DIM),-DTENSOR_WIDTHS=$(call LIST,$(HEAD_DIM)) -DGENERAL_WIDTHS=$(call LIST,$(HEAD_DIM:96=128)))
# BACKEND=ptx, which check-ptx alone sets: the CUDA build with PTX in place of machine code, on dev/ptx in place of
# libcudart
ifeq ($(filter $(BACKEND),cpu cuda ptx),)
  $(error BACKEND=$(BACKEND) is unknown; use cpu, cuda or auto)
endif
ifneq ($(filter-out asan tsan,$(SAN)),)
  $(error SAN=$(SAN) is unknown; use asan or tsan)
endif
ifneq ($(if $(filter-out clean help,$(or $(MAKECMDGOALS),all)),$(BACKEND),cpu),cpu)
  ifeq ($(HAVE_NVCC),)
    $(error BACKEND=$(BACKEND) needs nvcc, and there is no $(NVCC): install CUDA $(OLDEST_CUDA) or later, or set \
      CUDA_HOME)
  endif
  CUDA := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  ifneq ($(firstword $(shell printf '%s\n' $(OLDEST_CUDA) $(or $(CUDA),0) | sort -V)),$(OLDEST_CUDA))
    $(error $(NVCC) is of $(if $(CUDA),CUDA $(CUDA),no CUDA: it does not name a release): install $(OLDEST_CUDA) or \
      later (https://developer.nvidia.com/cuda-downloads) and set CUDA_HOME, or build with BACKEND=cpu)
  endif
  NVCC_FAILS := $(shell $(NVCC) -x cu -E /dev/null 2>&1 >/dev/null | \
    grep -m 1 -o 'unsupported .* version.*supported' | cut -c 1-120)
  ifneq ($(NVCC_FAILS),)
    $(error nvcc of CUDA $(CUDA) does not take this compiler: $(NVCC_FAILS). \
      Install an older g++ and name it: export NVCC_PREPEND_FLAGS="-ccbin g++-13")
  endif
  # A GPU newer than this nvcc gets the newest target that it knows.
  KNOWN := $(shell $(NVCC) --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$$/\1/p')
  newest_for = $(lastword $(shell printf '%s\n' $(KNOWN) | sort -n | awk '$$1 <= $(1)'))
  # what nvcc links by itself: -L of its libraries
  CUDA_LIBRARIES := $(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n 's/^\#$$ LIBRARIES=//p')
endif
ARCH ?= $(or $(sort $(foreach gpu,$(filter-out unknown,$(USABLE_GPUS)),$(call newest_for,$(gpu)))),80 90)
# Hopper's own kernels need 90a.
override ARCH := $(patsubst 90,90a,$(ARCH))
ifneq ($(call TOO_OLD,$(ARCH)),)
  $(error ARCH=$(ARCH): the kernels need sm_80 (Ampere) or newer)
endif
ifneq ($(if $(KNOWN),$(filter-out $(KNOWN) $(KNOWN:=a) $(KNOWN:=f),$(ARCH))),)
  $(error ARCH=$(ARCH): nvcc of CUDA $(CUDA) knows $(KNOWN); leave out what it does not know, or install a newer one)
endif
# A program may run on a GPU newer than its targets: it carries PTX of the lowest, which the driver compiles there.
# (PTX of 90a runs on 9.0 alone.)
WITH_PTX := $(if $(filter cuda,$(BACKEND)),$(firstword $(shell printf '%s\n' $(patsubst %a,%,$(ARCH:f=)) | sort -n)))
ifeq ($(BACKEND),ptx)
  NCCL := 0
endif
ifndef NCCL
  NCCL := $(if $(filter cpu,$(BACKEND)),1,$(shell echo 'int main() {}' | $(CXX) $(CPPFLAGS) -I$(CUDA_HOME)/include \
    -include nccl.h -x c++ - $(LDFLAGS) -L$(CUDA_HOME)/lib64 -lnccl -o /dev/null >/dev/null 2>&1 && echo 1 || echo 0))
  WITHOUT_NCCL := : no NCCL was found. Install libnccl-dev, or say where it is by CPPFLAGS=-I... LDFLAGS=-L...
endif
HAVE_PCRE2 := $(shell echo | $(CXX) -E -DPCRE2_CODE_UNIT_WIDTH=8 -include pcre2.h -x c++ - >/dev/null 2>&1 && \
  echo 1 || echo 0)
# One for OpenMP, as distributions build it: each of our threads can tell that to start no others.
HAVE_ONEDNN := $(if $(filter cpu,$(BACKEND)),$(shell \
  printf '%s\n' '\#if DNNL_CPU_RUNTIME != DNNL_RUNTIME_OMP' '\#error' '\#endif' | \
  $(CXX) $(CPPFLAGS) -E -include dnnl.hpp -x c++ - >/dev/null 2>&1 && echo 1 || echo 0))
# The instructions that MARCH adds to those of every CPU. A folder that machines share has objects of the last one that
# ran make.
FEATURES := $(if $(filter cpu ptx,$(BACKEND)),$(shell \
  bash scripts/lib/cpu_features.sh "$(CPPFLAGS) -march=$(MARCH)" $(CXX) 2>/dev/null))
THIS_CPU := $(if $(filter native,$(MARCH)),$(shell sed -n '/^model name/{s/.*: //p;q}' /proc/cpuinfo 2>/dev/null | \
  tr -cd 'A-Za-z0-9 ()@.-'))
BUILT_FOR := MARCH=$(MARCH)$(if $(THIS_CPU), on $(THIS_CPU))
MADE_FOR = $(if $(filter cpu,$(BACKEND)),the CPU,CUDA: $(ARCH:%=sm_%)$(WITH_PTX:%=$(COMMA) PTX of compute_%))
summary = echo './train is built for $(MADE_FOR)'
summary += $(if $(WITHOUT_GPU),&& echo '  without $(WITHOUT_GPU)')
summary += $(if $(filter 0,$(NCCL)),&& echo '  without several GPUs$(or $(WITHOUT_NCCL),: NCCL=0)')
summary += $(if $(filter 0,$(HAVE_PCRE2)),&& \
  echo '  without text in GPT-2 tokens: install libpcre2-dev and run make again')
summary += $(if $(filter 0,$(HAVE_ONEDNN)),&& \
  echo '  without the faster matrix products of oneDNN: install libdnnl-dev and run make again')
# The last line. A sweep that is running takes the new program.
WERE = $(filter-out $(ATTN) $(KINDS),$(shell \
  cat $(BUILD)/train.lost $(if $(filter summary,$(MAKECMDGOALS)),,$$(readlink train).kinds) 2>/dev/null | tac))
name_of = $(notdir $(basename $(1)))
# Of several files with a name, the last: a build takes one. The program may have another file of this name now.
LOST = $(sort $(foreach name,$(filter-out $(call name_of,$(ATTN) $(KINDS)),$(sort $(call name_of,$(WERE)))), \
  $(firstword $(filter $(name) $(name).cuh %/$(name).cuh,$(WERE)))))
of_name = $(firstword $(filter $(1) %/$(1),$(WERE)))
summary += $(foreach file,$(KINDS),$(foreach old,$(call of_name,$(notdir $(file))),&& \
  echo '  $(call name_of,$(file)) is now $(file), no longer $(old)'))
WITH_LOST = $(strip $(KINDS) $(filter %.cuh,$(LOST)))
summary += && echo '  with the kinds $(call name_of,$(ATTN) $(KINDS))$(if $(LOST),; it has lost \
  $(call name_of,$(LOST)): make$(if $(WITH_LOST), KINDS="$(WITH_LOST)"))'
summary:                           ## what ./train can do here, and what it lacks for want of what
	@$(summary)
.PHONY: summary
