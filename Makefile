# plusgpt. `make` builds ./train, `make help` lists the rest. Objects lie under build/BACKEND (with -asan, -tsan for those builds).
#   BACKEND=cpu|cuda|auto   auto: cuda when nvcc and a GPU are there        ARCH="80 90"    GPU targets (default: the GPU present)
#   CPPFLAGS, LDFLAGS       added to every compile and link                 MARCH=native    the CPU to build for
#   NCCL=0                  build without NCCL (default where it is missing) SAN=asan|tsan   sanitizer build (CPU only)
#   ATTN="softmax lssar"    only these kinds of attention                   HEAD_DIM=64     attention kernels for these head sizes only
#   V=1                     show every command                              TOGETHER=        compile host code file by file
MAKEFLAGS += -j$(shell nproc) --no-print-directory
BACKEND ?= auto
MARCH ?= native
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v nvcc || echo /usr/local/cuda/bin/nvcc))
NVCC ?= $(CUDA_HOME)/bin/nvcc
OLDEST_CUDA := 12.4
# a comma would end an argument of a function
COMMA := ,
HAVE_NVCC := $(shell command -v $(NVCC))
# Compute capabilities of the GPUs that are here. The kernels need 8.0 (Ampere) or newer; older cards are left out.
TOO_OLD = $(filter 10 11 12 13 20 21 3% 5% 6% 7%,$(1))
GPUS := $(subst .,,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -x '[0-9.]*' | sort -u))
# a driver may be too old to name them
GPUS := $(or $(GPUS),$(if $(shell nvidia-smi -L 2>/dev/null | grep ^GPU),unknown))
USABLE_GPUS := $(filter-out $(call TOO_OLD,$(GPUS)),$(GPUS))
ifeq ($(BACKEND),auto)
  WITHOUT_GPU := $(if $(USABLE_GPUS),$(if $(HAVE_NVCC),,a GPU$(COMMA) for lack of nvcc: install CUDA $(OLDEST_CUDA) or later and run make again),$(if \
    $(GPUS),the GPU$(COMMA) of compute capability $(GPUS): the kernels need 80 (Ampere) or newer,$(if \
    $(HAVE_NVCC),a GPU: nvidia-smi shows none here; make BACKEND=cuda builds for one elsewhere)))
  override BACKEND := $(if $(USABLE_GPUS),$(if $(HAVE_NVCC),cuda,cpu),cpu)
endif
ifeq ($(filter $(BACKEND),cpu cuda ptx),)
  $(error BACKEND=$(BACKEND) is unknown; use cpu, cuda or auto)
endif
ifneq ($(if $(filter-out clean help,$(or $(MAKECMDGOALS),all)),$(BACKEND),cpu),cpu)
  ifeq ($(HAVE_NVCC),)
    $(error BACKEND=$(BACKEND) needs nvcc, and there is no $(NVCC): install CUDA $(OLDEST_CUDA) or later, or set CUDA_HOME)
  endif
  CUDA := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  ifneq ($(firstword $(shell printf '%s\n' $(OLDEST_CUDA) $(or $(CUDA),0) | sort -V)),$(OLDEST_CUDA))
    $(error $(NVCC) is of $(if $(CUDA),CUDA $(CUDA),no CUDA: it does not name a release): install $(OLDEST_CUDA) or later (https://developer.nvidia.com/cuda-downloads) and set CUDA_HOME, or build with BACKEND=cpu)
  endif
  NVCC_FAILS := $(shell $(NVCC) -x cu -E /dev/null 2>&1 >/dev/null | grep -m 1 -o 'unsupported .* version.*supported' | cut -c 1-120)
  ifneq ($(NVCC_FAILS),)
    $(error nvcc of CUDA $(CUDA) does not take this compiler: $(NVCC_FAILS). Install an older g++ and name it: export NVCC_PREPEND_FLAGS="-ccbin g++-13")
  endif
  # A GPU newer than this nvcc gets the newest target that it knows.
  KNOWN := $(shell $(NVCC) --list-gpu-arch | sed -n 's/^compute_\([0-9]*\)$$/\1/p')
  newest_for = $(lastword $(shell printf '%s\n' $(KNOWN) | sort -n | awk '$$1 <= $(1)'))
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
BUILD := build/$(BACKEND)$(addprefix -,$(SAN))
# BACKEND=ptx, which check-ptx alone sets: the CUDA build with PTX in place of machine code, on emulation/ptx in place of libcudart
ifeq ($(BACKEND),ptx)
  NCCL := 0
  BUILD := build/ptx-$(ARCH)
endif

# ---- what is compiled: every source file of every room; tests and benchmarks are programs of their own
HOST_ROOMS := base data settings ranks checkpoint eval training  # without kernels
TEST_ROOMS := data settings checkpoint eval training  # of them, those whose tests are compiled together
# families of attention kernels: attention/FAMILY/kernels.cuh
FAMILIES := $(patsubst attention/%/kernels.cuh,%,$(wildcard attention/*/kernels.cuh))
ifeq ($(SAN):$(FULL):$(MAKECMDGOALS),tsan::sanitizer-tests)
  # none of THREADED needs these
  HOST_ROOMS := $(filter-out checkpoint eval training,$(HOST_ROOMS))
  TEST_ROOMS :=
  FAMILIES := general
endif
ROOMS := kernels attention $(HOST_ROOMS)
SOURCES := train_gpt2.cu parameters.cpp $(foreach room,$(ROOMS),$(sort $(wildcard $(room)/*.cu $(room)/*.cpp)))
ifeq ($(BACKEND),cpu)
  SOURCES := $(filter-out kernels/matmul.cu,$(SOURCES)) $(sort $(wildcard emulation/cpu/*.cpp))
endif
ifeq ($(BACKEND),ptx)
  SOURCES += $(sort $(wildcard emulation/ptx/*.cpp))
endif
ATTN ?= $(KINDS)
KINDS := $(shell tr '\n' ' ' < attention/settings.h | sed 's/.*enum class Kind {\([^}]*\)}.*/\1/' | tr -d ,)
ifneq ($(filter-out $(KINDS),$(ATTN)),)
  $(error ATTN=$(filter-out $(KINDS),$(ATTN)) is unknown; choose from $(KINDS))
endif
# collectives: NCCL, on the CPU its replacement
ifndef NCCL
  NCCL := $(if $(filter cpu,$(BACKEND)),1,$(shell echo 'int main() {}' | $(CXX) $(CPPFLAGS) -I$(CUDA_HOME)/include \
    -include nccl.h -x c++ - $(LDFLAGS) -L$(CUDA_HOME)/lib64 -lnccl -o /dev/null >/dev/null 2>&1 && echo 1 || echo 0))
  WITHOUT_NCCL := : no NCCL was found. Install libnccl-dev, or say where it is by CPPFLAGS=-I... LDFLAGS=-L...
endif
SOURCES := $(filter-out $(if $(filter 0,$(NCCL)),ranks/comm.cpp,ranks/comm_alone.cpp),$(SOURCES))
TEST_SOURCES := $(filter-out $(if $(filter 0,$(NCCL)),test/ranks/comm_test.cpp),$(sort $(wildcard test/*/*_test.cu test/*/*_test.cpp)))
# what kernels/hopper.cuh serves is there on the CPU and on sm_90a
ifeq ($(if $(filter cpu,$(BACKEND)),90a,$(filter 90a,$(ARCH))),)
  FAMILIES := $(filter-out hopper,$(FAMILIES))
  TEST_SOURCES := $(filter-out test/kernels/hopper_% test/attention/hopper_%,$(TEST_SOURCES))
endif
# Every family of attention kernels is compiled once for each kind, from a file that is written here.
INSTANCES := $(foreach family,$(FAMILIES),$(ATTN:%=$(BUILD)/attention/$(family)/%.cu))
# The files of a host room are compiled as one. Most of the time goes into templates of nlohmann and the standard library,
# which each file would compile anew: this takes half. File by file, with TOGETHER= or FULL=1, a missing include shows. What
# a file keeps for itself needs a name of its own in the room.
of_rooms = $(foreach room,$(1),$(filter $(room)/%,$(SOURCES) $(TEST_SOURCES)))
TOGETHER ?= $(if $(FULL),,$(HOST_ROOMS))
override TOGETHER := $(filter $(HOST_ROOMS),$(TOGETHER))
# rooms first: they take longest
OBJECTS := $(patsubst %,$(BUILD)/%.o,$(TOGETHER:%=%/room.cpp) $(filter-out $(call of_rooms,$(TOGETHER)),$(SOURCES))) $(INSTANCES:=.o)
# On the CPU only tests run the families for tensor cores: dispatch finds those that are linked.
OTHERS := $(if $(filter cpu,$(BACKEND)),$(filter-out general,$(FAMILIES)))
TRAIN_OBJECTS := $(filter-out $(foreach family,$(OTHERS),$(BUILD)/attention/$(family)/%),$(OBJECTS))
BENCHES := kernels attention step
# The tests of a host room are one program, test_ROOM, and compiled as the room is; elsewhere test/ROOM/NAME_test.cu is the
# program test_NAME.
test_room = $(filter $(TEST_ROOMS),$(word 2,$(subst /, ,$(1))))
test_object = $(BUILD)/$(if $(filter $(TOGETHER),$(test_room)),$(dir $(1))room.cpp,$(1)).o
test_program = $(BUILD)/test_$(or $(test_room),$(patsubst %_test,%,$(basename $(notdir $(1)))))
TESTS := $(sort $(foreach t,$(TEST_SOURCES),$(call test_program,$(t))))

# ---- flags
HAVE_PCRE2 := $(shell printf '\#define PCRE2_CODE_UNIT_WIDTH 8\n\#include <pcre2.h>\n' | $(CXX) -E -x c++ - >/dev/null 2>&1 && echo 1 || echo 0)
# g++ 12 invents overlaps in std::string (GCC bug 105651). Each compiler ignores what it does not know: clang has no such
# warning, and says of the largest loops that it does not unroll them, which on a CPU is right.
WARNINGS := -Wall -Wextra -Wno-unknown-warning-option -Wno-restrict -Wno-pass-failed
ifneq ($(filter-out 32 64 96 128,$(HEAD_DIM)),)
  $(error HEAD_DIM=$(HEAD_DIM): attention kernels exist for 32 64 96 128; other heads use the next of them, or the general kernels in several chunks)
endif
# the general kernels have none of 96
COMMAS = $(shell echo $(1) | tr ' ' ,)
WIDTHS := $(if $(HEAD_DIM),-DTENSOR_WIDTHS=$(call COMMAS,$(HEAD_DIM)) -DGENERAL_WIDTHS=$(call COMMAS,$(HEAD_DIM:96=128)))
DEFINES := -I. -DHAVE_PCRE2=$(HAVE_PCRE2) $(WIDTHS) $(CPPFLAGS)
LIBRARIES := $(if $(filter 1,$(HAVE_PCRE2)),-lpcre2-8) -pthread
OPTIMIZE := -O3
# Without checks of pointers: AddressSanitizer notices when a wrong one is used, and these checks are a third of the time it
# takes to compile a kernel.
ADDRESS_CHECKS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-sanitize=null,object-size,pointer-overflow,vptr
ifeq ($(SAN),asan)
  OPTIMIZE := -O1 -g1 -fno-omit-frame-pointer $(ADDRESS_CHECKS)
else ifeq ($(SAN),tsan)
  OPTIMIZE := -O1 -g1 -fno-omit-frame-pointer -fsanitize=thread
else ifneq ($(SAN),)
  $(error SAN=$(SAN) is unknown; use asan or tsan)
endif
HOST := -std=c++20 -fno-strict-aliasing $(WARNINGS) $(DEFINES)
ifeq ($(BACKEND),cpu)
  # emulation/cpu/ holds what stands in for the CUDA toolkit's headers (cuda_runtime.h, cuda_bf16.h, ...)
  CXX_CPU := $(CXX) $(HOST) $(OPTIMIZE) -march=$(MARCH) -fno-math-errno -fno-trapping-math -Iemulation/cpu
  # What nearly every file includes is compiled once for all of them: a fifth of the whole build's time. Functions in it are
  # optimized as it was, whatever the file that includes it asks for: so there are two.
  CXX_CU := $(CXX_CPU) -Wno-unknown-pragmas
  COMMON := $(BUILD)/common.h $(BUILD)/common_less.h
  COMPILE_CU := $(CXX_CU) -include $(BUILD)/common.h -x c++
  # host code, .cpp, compiles in two thirds of the time so, under a sanitizer in half
  LESS = $(patsubst -O3,-O1,$(patsubst -O1,-O0,$(1)))
  COMPILE_CU_LESS := $(call LESS,$(CXX_CU)) -include $(BUILD)/common_less.h -x c++
  COMPILE_CPP := $(COMPILE_CU_LESS)
  # but not the layer's own files, which have hot loops as kernels have, nor eval/, whose last digits would change.
  # private: not for what they depend on, the list of flags
  $(BUILD)/emulation/cpu/%.cpp.o: private COMPILE_CPP := $(CXX_CPU)
  ifndef SAN
    $(BUILD)/eval/%.cpp.o: private COMPILE_CPP := $(COMPILE_CU)
  endif
  # So do tests, and what only they run; but not those whose references take longer to run than to compile: attention's,
  # and under a sanitizer two more. Hopper's kernels do there too, where compiling them takes longest.
  LESS_SOURCES := train_gpt2.cu \
    $(filter-out $(if $(SAN),test/kernels/kernels_test.cu test/kernels/matmul_test.cu),$(filter test/%.cu,$(TEST_SOURCES))) \
    attention/hopper/%.cu $(if $(SAN),,attention/tensor/%.cu)
  $(LESS_SOURCES:%=$(BUILD)/%.o): private COMPILE_CU := $(COMPILE_CU_LESS)
  LINK := $(CXX) $(OPTIMIZE) $(LDFLAGS)
  LIBRARIES += -lopenblas
else
  CODE := $(if $(filter ptx,$(BACKEND)),compute,sm)
  # A program may run on a GPU newer than its targets: it carries PTX of the lowest, which the driver compiles there.
  # (PTX of 90a runs on 9.0 alone.)
  WITH_PTX := $(if $(filter ptx,$(BACKEND)),,$(firstword $(shell printf '%s\n' $(patsubst %a,%,$(ARCH:f=)) | sort -n)))
  TARGETS = $(foreach a,$(ARCH),-gencode arch=compute_$(a),code=$(CODE)_$(a)) \
            $(foreach a,$(WITH_PTX),-gencode arch=compute_$(a),code=compute_$(a))
  # nvcc takes a comma for the beginning of another macro
  NVCC_FLAGS = -std=c++20 -O3 -lineinfo $(TARGETS) $(subst $(COMMA),\\$(COMMA),$(DEFINES)) -Xcompiler -Wall,-fno-strict-aliasing
  COMPILE_CU = $(NVCC) $(NVCC_FLAGS) -Xptxas -v -x cu
  # registers, shared memory and spills of every kernel, beside its object
  KEEP_REPORT = > $(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas) >&2; exit 1; }
  # private: not for what they depend on, the list of flags
  $(BUILD)/attention/hopper/%.cu.o $(foreach place,test/kernels test/attention bench,$(BUILD)/$(place)/hopper_%.cu.o): \
    private TARGETS := -gencode arch=compute_90a,code=$(CODE)_90a
  COMPILE_CPP := $(CXX) $(HOST) $(OPTIMIZE:-O3=-O1) -I$(CUDA_HOME)/include -x c++
  # Linked by the compiler of the host code: nvcc may use an older one, whose library lacks what that code needs.
  LINK := $(CXX) $(LDFLAGS)
  LIBRARIES += $(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n 's/^\#$$ LIBRARIES=//p') -Wl,-rpath,$(CUDA_HOME)/lib64 \
    -lcublasLt $(if $(filter 0,$(NCCL)),,-lnccl) -lcudart_static -ldl -lrt
endif
ifeq ($(BACKEND),ptx)
  NVCC_FLAGS += -no-compress
  # one operation of PTX is one of C++: nothing is contracted or moved across a change of the rounding
  $(BUILD)/emulation/ptx/%.cpp.o: private COMPILE_CPP += -O3 -march=$(MARCH) -ffp-contract=off -frounding-math
  LINK := $(CXX) $(LDFLAGS)
  LIBRARIES := $(if $(filter 1,$(HAVE_PCRE2)),-lpcre2-8) -pthread
endif

# ---- rules: a line for what is made, with V=1 the whole command
SAY = $(if $(V),,@echo '$(1) $(2)';)
.PHONY: all summary test tests headers fuzz sanitizer-tests check-asan check-tsan ptx-tests check-ptx check-full bench quickstart cuda-subset clean help FORCE
all: train
# What the program can do, and what it lacks for want of what.
summary = echo './train is built for $(if $(filter cpu,$(BACKEND)),the CPU,CUDA: $(ARCH:%=sm_%)$(COMMA) PTX of compute_$(WITH_PTX))'
summary += $(if $(WITHOUT_GPU),&& echo '  without $(WITHOUT_GPU)')
summary += $(if $(filter 0,$(NCCL)),&& echo '  without several GPUs$(or $(WITHOUT_NCCL),: NCCL=0)')
summary += $(if $(filter 0,$(HAVE_PCRE2)),&& echo '  without text in GPT-2 tokens: install libpcre2-dev and run make again')
train: $(BUILD)/train FORCE
	@ln -sfn $(BUILD)/train train
	@$(summary)
summary:
	@$(summary)

$(BUILD)/train: $(BUILD)/main.cpp.o $(TRAIN_OBJECTS) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK) -o $@ $(filter %.o,$^) $(LIBRARIES)

# Objects are rebuilt when the flags change, programs when the list of objects does: both are kept in files.
IF_NEW = > $@.new && if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi  # written only if it changes
$(BUILD)/objects: FORCE
	@mkdir -p $(@D); echo '$(OBJECTS)' $(IF_NEW)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); echo '$(COMPILE_CU) $(COMPILE_CPP)' $(IF_NEW)
$(BUILD)/%/room.cpp: FORCE
	@mkdir -p $(@D); printf '#include "%s"\n' $(call of_rooms,$*) $(IF_NEW)
# Measured figures and documents are no sources: writing them down does not make the commit another one.
COMMIT ?= $(shell git describe --always 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD -- ':!bench/results' ':!*.md' ':!*.png' 2>/dev/null; [ $$? = 1 ] && echo -dirty)
$(BUILD)/version.h: FORCE
	@mkdir -p $(@D); echo '#define PLUSGPT_VERSION "$(COMMIT)"' $(IF_NEW)

# The text of a Python file, as a C++ string: checkpoints carry it, wherever the program runs.
$(BUILD)/modeling_plusgpt.inc: scripts/modeling_plusgpt.py
	@mkdir -p $(@D); { printf 'R"PYTHON('; cat $<; printf ')PYTHON"\n'; } > $@

$(BUILD)/main.cpp.o $(patsubst %,$(BUILD)/bench/%_bench.cu.o,$(BENCHES) hopper): $(BUILD)/version.h
$(BUILD)/checkpoint/hugging_face.cpp.o $(BUILD)/checkpoint/room.cpp.o: $(BUILD)/modeling_plusgpt.inc
$(COMMON): $(BUILD)/flags
	@echo '#include "kernels/gpu.cuh"' > $@
$(BUILD)/common_less.h.gch: private CXX_CU := $(call LESS,$(CXX_CU))
$(COMMON:=.gch): %.gch: % kernels/gpu.cuh
	$(call SAY,compile,$@)$(CXX_CU) -MMD -MP -MF $(<:.h=.d) -x c++-header $< -o $@
$(BUILD)/%.cu.o: %.cu $(BUILD)/flags $(COMMON:=.gch)
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(COMPILE_CU) -I$(BUILD) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ $(KEEP_REPORT)
$(INSTANCES): $(BUILD)/attention/%.cu: Makefile
	@mkdir -p $(@D); printf '#include "attention/%s/kernels.cuh"\n\n[[maybe_unused]] static const bool added = add_%s<Kind::%s>();\n' $(*D) $(*D) $(*F) $(IF_NEW)
$(INSTANCES:=.o): %.o: % $(BUILD)/flags $(COMMON:=.gch)
	$(call SAY,compile,$<)$(COMPILE_CU) -I$(BUILD) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ $(KEEP_REPORT)
$(BUILD)/%/room.cpp.o: $(BUILD)/%/room.cpp $(BUILD)/flags $(COMMON:=.gch)
	$(call SAY,compile,$*/)$(COMPILE_CPP) -I$(BUILD) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/%.cpp.o: %.cpp $(BUILD)/flags $(COMMON:=.gch)
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(COMPILE_CPP) -I$(BUILD) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

# Every header compiles alone, without what the files that include it today, or this compiler's library, include before.
HEADERS := $(filter-out build/%,$(wildcard *.h *.cuh */*.h */*.cuh */*/*.h */*/*.cuh))
headers: $(if $(filter cpu,$(BACKEND)),$(HEADERS:%=$(BUILD)/%.alone))
$(BUILD)/%.alone: % $(BUILD)/flags $(BUILD)/version.h
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(CXX_CU) -I$(BUILD) -MMD -MP -MF $@.d -MT $@ -fsyntax-only -x c++ -include $< /dev/null && touch $@

REFERENCE := $(BUILD)/test/attention/attention_reference.cu.o
$(foreach t,$(TEST_SOURCES),$(eval $(call test_program,$t): $(call test_object,$t) \
  $(if $(shell grep -lE '(attention|model)_reference.h' $t),$(REFERENCE))))
$(TESTS): $(OBJECTS) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK) -o $@ $(filter %.o,$^) $(LIBRARIES) -lgtest_main -lgtest
$(BUILD)/planted_bugs: $(BUILD)/test/emulation/cpu_planted_bugs.cu.o $(OBJECTS) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK) -o $@ $(filter %.o,$^) $(LIBRARIES)
$(BUILD)/bench_%: $(BUILD)/bench/%_bench.cu.o $(OBJECTS) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK) -o $@ $(filter %.o,$^) $(LIBRARIES)
.DELETE_ON_ERROR:
.PRECIOUS: $(BUILD)/%.cu.o $(BUILD)/%.cpp.o $(BUILD)/%/room.cpp
-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*.d $(BUILD)/*/*/*.d)

tests: $(TESTS)                    ## build every test program
test: train $(TESTS)               ## run every test of this build
	@bash test/support/run.sh $(BUILD) $(TESTS)
check-asan:                        ## the kernels and readers under AddressSanitizer + UBSan; planted bugs must be found
	@$(MAKE) BACKEND=cpu SAN=asan $(FEW_KINDS) sanitizer-tests
check-tsan:                        ## the kernels under ThreadSanitizer; planted races must be found
	@$(MAKE) BACKEND=cpu SAN=tsan $(ONE_KIND) sanitizer-tests
# What takes minutes is left to FULL=1: the kinds of attention whose code the two here do not share; all but one of the
# attention kernels' head sizes; under AddressSanitizer the tests of host code that handles no memory of its own, and of
# the ways that are off by default (UNWATCHED); and, under ThreadSanitizer, the kernels' tests but for the ranks', the
# layer's, the loader's, the gate's, Hopper's and the planted races, none of which needs a second kind.
TWO_KINDS := ATTN="softmax lssar"
FEW_KINDS := $(if $(FULL),,$(TWO_KINDS) HEAD_DIM=64)
ONE_KIND := $(if $(FULL),,ATTN=softmax HEAD_DIM=64)
UNWATCHED := $(if $(FULL),,settings training matmul_choices masks attention_reference reference hopper_ways)
THREADED := comm portability cpu_layer data gate hopper $(if $(FULL),attention kernels matmul model)
sanitizer-tests: $(if $(filter tsan,$(SAN)),$(THREADED:%=$(BUILD)/test_%),$(filter-out $(UNWATCHED:%=$(BUILD)/test_%),$(TESTS))) $(BUILD)/planted_bugs
	@bash test/support/run.sh $(BUILD) $(filter $(BUILD)/test_%,$^)
# PTX_ARCH=80: what Ampere gets of it. The rest of the programs, and the long tests, with FULL=1.
PTX_ARCH ?= 90
override PTX_ARCH := $(patsubst 90,90a,$(PTX_ARCH))
PTX_TESTS := $(if $(filter 90a,$(ARCH)),hopper hopper_ways) attention kernels gate prepare $(if $(FULL),matmul model)
ptx-tests: $(PTX_TESTS:%=$(BUILD)/test_%)
check-ptx:                         ## the CUDA build's tests on its PTX, without a GPU; planted bugs must be noticed
	@if [ -n "$(HAVE_NVCC)" ]; then \
	   $(MAKE) BACKEND=ptx ARCH=$(PTX_ARCH) $(if $(FULL),,$(TWO_KINDS) HEAD_DIM="64 128") ptx-tests && bash test/emulation/ptx.sh build/ptx-$(PTX_ARCH); \
	 else echo 'check-ptx: there is no nvcc, nothing is checked'; fi
# Fuzzing of what reads untrusted bytes, with clang's libFuzzer. What it finds of interest is added to build/fuzz/NAME_corpus.
FUZZ_SECONDS ?= 20
FUZZERS := config shards safetensors tasks
FUZZ_SOURCES := $(addsuffix .cpp,$(addprefix base/,error json text file checksum) $(addprefix settings/,table read check show) \
  checkpoint/safetensors data/shards data/benchmark_file)
FUZZ_CXX := clang++ -std=c++20 -O1 -g1 -fsanitize=fuzzer-no-link $(ADDRESS_CHECKS) -I.
build/fuzz/%.o: %.cpp
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(FUZZ_CXX) -MMD -MP -c $< -o $@
build/fuzz/%: build/fuzz/test/fuzz/%_fuzz.o $(FUZZ_SOURCES:%.cpp=build/fuzz/%.o)
	$(call SAY,link,$@)$(subst fuzzer-no-link,fuzzer,$(FUZZ_CXX)) $^ -o $@
.PRECIOUS: build/fuzz/%.o
-include $(wildcard build/fuzz/*/*.d build/fuzz/*/*/*.d)
fuzz: $(FUZZERS:%=build/fuzz/%)    ## fuzz the readers of configurations, shards, safetensors and tasks, FUZZ_SECONDS=20 each
	@bash test/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZERS)
check-full: train                  ## everything, the long sanitizer runs, fuzzing and every CUDA kernel included
	@FULL=1 $(MAKE) test check-asan check-tsan -j1
	@FULL=1 TRAIN=$(CURDIR)/$(BUILD)/train bash -c '. scripts/common.sh && "$$(find_python)" -m unittest discover -s test -p "test_*.py"'
	@$(MAKE) fuzz FUZZ_SECONDS=300
	@[ -z "$(HAVE_NVCC)" ] || { FULL=1 $(MAKE) cuda-subset && python3 scripts/kernel_table.py && FULL=1 $(MAKE) check-ptx; }
# QUICK=1: two kinds of attention at few lengths and shorter steps, in about a minute; bench/results/ stays as it is.
QUICK_cpu_attention := softmax,lssar 64 128
QUICK_cpu_step := --variants softmax,lssar
QUICK_cuda_attention := softmax,lssar 64 1024,4096
QUICK_cuda_step := --variants softmax,lssar --set batch.tokens=131072
bench: $(BENCHES:%=$(BUILD)/bench_%)   ## speed of the machine, of every kernel, of attention by kind, of whole steps
	@$(foreach part,$(BENCHES),$(BUILD)/bench_$(part) $(if $(QUICK),$(QUICK_$(BACKEND)_$(part))) --json $(BUILD)/$(part).json &&) true
	-@$(if $(filter cuda,$(BACKEND)),python3 scripts/kernel_table.py)
	@python3 scripts/bench_table.py --collect $(if $(QUICK),--out $(BUILD)/quick.json) $(BENCHES:%=$(BUILD)/%.json)
quickstart:                        ## train, evaluate and plot a small model
	bash scripts/quickstart.sh
cuda-subset:                       ## compile the CUDA build for one target, with one kind of attention and one head size (all with FULL=1)
	@$(MAKE) BACKEND=cuda ARCH=$(lastword $(ARCH)) $(if $(FULL),,ATTN=lssar HEAD_DIM=64 OPTIMIZE=-O0) build/cuda/train
clean:                             ## remove build/ and ./train
	rm -rf build train
help:                              ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t16; sed -n '1,7s/^# \?//p' Makefile
