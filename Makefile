# plusgpt. `make` builds ./train in build/BACKEND, `make help` lists the rest, V=1 shows every command.
#   BACKEND=cpu|cuda|auto   auto: cuda if nvcc and a GPU are there     ARCH="80 90"    GPU targets (default: those here)
#   CPPFLAGS, LDFLAGS       added to every compile and link            MARCH=native    the CPU to build for
#   NCCL=0                  without NCCL (default if it is missing)    SAN=asan|tsan   sanitizer build (CPU only)
#   ATTN="softmax lssar"    only these kinds of attention              HEAD_DIM=64     only kernels of these head sizes
#   KINDS="my_score.cuh"    also the kinds of these files (attention/score.h)
MAKEFLAGS += $(if $(filter 0,$(MAKELEVEL)),-j$(shell sh scripts/lib/cores.sh)) --no-print-directory
all: train
include scripts/lib/toolchain.mk  # what this machine has: sets BACKEND, NVCC, ARCH, NCCL, HAVE_...
BUILD := build/$(if $(filter ptx,$(BACKEND)),ptx-$(ARCH),$(BACKEND))$(addprefix -,$(SAN))$(if $(PYTORCH),-pytorch)

# ---- what is compiled: every source file of every room; tests and benchmarks are programs of their own
# (PYTORCH=1, which `make pytorch` sets: those of its library, without matrix products.)
ROOMS := base kernels attention data settings $(if $(PYTORCH),pytorch,ranks model checkpoint eval training) \
  $(if $(filter cpu,$(BACKEND)),emulation) $(if $(filter ptx,$(BACKEND)),dev/ptx)
SOURCES := $(if $(PYTORCH),,train_gpt2.cu) $(foreach room,$(ROOMS),$(sort $(wildcard $(room)/*.cu $(room)/*.cpp)))
# On the CPU emulation/ multiplies matrices; without NCCL there is one rank.
OTHERWISE := $(if $(filter cpu,$(BACKEND)),kernels/matmul.cu) ranks/$(if $(filter 0,$(NCCL)),comm,comm_alone).cpp \
  $(if $(PYTORCH),kernels/matmul.cu emulation/matmul.cpp)
ONLY := %  # a sanitizer's part of the sources and tests: dev/dev.mk
SOURCES := $(filter $(ONLY),$(filter-out $(OTHERWISE),$(SOURCES)))
# Every family of attention kernels, attention/FAMILY/kernels.cuh, is compiled once for each kind. On the CPU only tests
# run the families for tensor cores (dispatch finds those that are linked): with kinds of files and with two kinds that
# together use all that a policy may; with FULL=1, with every kind.
# A kind is a file, attention/kinds/NAME.cuh; the default, softmax, comes first.
KIND_FILES := $(sort $(wildcard attention/kinds/*.cuh))
KIND_FILES := $(filter %/softmax.cuh,$(KIND_FILES)) $(filter-out %/softmax.cuh,$(KIND_FILES))
SHIPPED := $(basename $(notdir $(KIND_FILES)))
ATTN ?= $(SHIPPED)
ifneq ($(filter-out $(SHIPPED),$(ATTN)),)
  $(error ATTN=$(filter-out $(SHIPPED),$(ATTN)) is unknown; choose from $(SHIPPED))
endif
# Kinds of other files, numbered behind those. What is wrong with a file is said first.
WRONG := $(if $(KINDS),$(shell bash scripts/lib/kind_files.sh list "$(KIND_FILES)" '$(subst ','\'',$(KINDS))' 2>&1 \
  >/dev/null))
$(if $(WRONG),$(error $(WRONG)))
FILE_KINDS := $(shell printf '%s\n' $(basename $(notdir $(KINDS))) | awk '!seen[$$0]++')
# Code on kernels/hopper.cuh is built for the CPU and sm_90a, oneDNN's family for the CPU alone.
WITHOUT_HOPPER := $(if $(filter cpu,$(BACKEND))$(filter 90a,$(ARCH)),,hopper)
WITHOUT := $(WITHOUT_HOPPER) $(if $(filter cpu,$(BACKEND)),,onednn)
FAMILIES := $(filter-out $(WITHOUT),$(patsubst attention/%/kernels.cuh,%,$(wildcard attention/*/kernels.cuh)))
FOR_TESTS := $(if $(filter cpu,$(BACKEND)),$(filter-out general onednn,$(FAMILIES)))
TESTED := $(if $(FULL),$(ATTN),$(filter softmax lssar,$(ATTN))) $(FILE_KINDS)
INSTANCES := $(foreach family,$(FAMILIES),$(patsubst %,$(BUILD)/attention/$(family)/%.cu,$(if \
  $(filter $(family),$(FOR_TESTS)),$(TESTED),$(ATTN) $(FILE_KINDS))))
OBJECTS := $(INSTANCES:=.o) $(SOURCES:%=$(BUILD)/%.o)  # those that take longest first
TRAIN_OBJECTS := $(filter-out $(FOR_TESTS:%=$(BUILD)/attention/%/%),$(OBJECTS))
# test/ROOM/*_test are one program, test_ROOM, where a room is host code; elsewhere test/ROOM/NAME_test is test_NAME.
TEST_ROOMS := data settings checkpoint eval training
OTHERWISE := $(if $(filter 0,$(NCCL)),test/ranks/%) $(if $(filter ptx,$(BACKEND)),,dev/test/ptx_%) \
  $(WITHOUT_HOPPER:%=test/kernels/%_% test/attention/%_%)
TEST_SOURCES := $(sort $(wildcard test/*/*_test.cu test/*/*_test.cpp dev/test/*_test.cpp))
TEST_SOURCES := $(filter $(ONLY),$(filter-out $(OTHERWISE),$(TEST_SOURCES)))
room_of = $(word 2,$(subst /, ,$(1)))
test_program = $(BUILD)/test_$(or $(filter $(TEST_ROOMS),$(room_of)),$(patsubst %_test,%,$(basename $(notdir $(1)))))
TESTS := $(sort $(foreach source,$(TEST_SOURCES),$(call test_program,$(source))))
BENCHES := kernels attention step

# ---- flags
KIND_NAMES := -DKINDS_OF_THE_TREE=$(subst $(SPACE),$(COMMA),$(SHIPPED))
DEFINES := -I. -I$(BUILD) -DHAVE_PCRE2=$(HAVE_PCRE2) $(KIND_NAMES) $(WIDTHS) \
  $(if $(PYTORCH),-DPLUSGPT_LIBRARY) $(CPPFLAGS)
# g++ 12 invents overlaps and sizes in std::string (GCC bug 105651); clang reports the largest loops as not unrolled,
# which is right on a CPU. Beside an error g++ would list the options that only clang knows.
WARNINGS := -Wall -Wextra $(if $(findstring clang,$(shell $(CXX) --version 2>/dev/null)),-Wno-pass-failed, \
  -Wno-restrict -Wno-stringop-overflow)
# The library's objects are its own: the trainer's would be slower at addresses that are known only when it is loaded.
PIC := $(if $(PYTORCH),-fPIC -fvisibility=hidden)
HOST = $(CXX) -std=c++20 $(OPTIMIZE) -fno-strict-aliasing $(PIC) $(WARNINGS) $(DEFINES)
LIBRARIES := $(if $(filter 1,$(HAVE_PCRE2)),-lpcre2-8) -pthread
OPTIMIZE := -O3
ifdef SAN
  OPTIMIZE = -O1 -g1 -fno-omit-frame-pointer $(SANITIZER_$(SAN))
else
  # Host code, and kernels and tests that no user runs, compile in two thirds of the time. `private`: not for their
  # prerequisites, the list of flags.
  $(BUILD)/%.cpp.o $(BUILD)/%-O1.h.gch $(BUILD)/test/%.cu.o $(FOR_TESTS:%=$(BUILD)/attention/%/%.o): \
    private OPTIMIZE := -O1
  $(BUILD)/eval/%.cpp.o $(BUILD)/emulation/%.cpp.o $(BUILD)/dev/ptx/%.cpp.o $(BUILD)/%_reference.cu.o: \
    private OPTIMIZE := -O3
endif
ifeq ($(BACKEND),cpu)
  # emulation/ has its own cuda_runtime.h, cuda_bf16.h, ... in place of the CUDA toolkit's.
  HOST += -march=$(MARCH) -fno-math-errno -fno-trapping-math -Iemulation -Wno-unknown-pragmas
  HOST += -DHAVE_ONEDNN=$(HAVE_ONEDNN)
  # The header that nearly every file includes is compiled once for each -O (its functions would keep another one): that
  # saves a fifth of the whole build's time.
  COMMON = $(BUILD)/common$(firstword $(OPTIMIZE)).h
  PRECOMPILED := $(if $(SAN),$(COMMON),$(BUILD)/common-O1.h $(BUILD)/common-O3.h)
  COMPILE_CPP = $(HOST) -include $(COMMON) -x c++
  COMPILE_CU = $(COMPILE_CPP)
  LIBRARIES += -lopenblas $(if $(filter 1,$(HAVE_ONEDNN)),-ldnnl -lgomp)
else
  CODE := $(if $(filter ptx,$(BACKEND)),compute,sm)
  TARGETS = $(foreach a,$(ARCH),-gencode arch=compute_$(a),code=$(CODE)_$(a)) \
            $(foreach a,$(WITH_PTX),-gencode arch=compute_$(a),code=compute_$(a))
  $(BUILD)/attention/hopper/%.cu.o $(patsubst %,$(BUILD)/%/hopper_%.cu.o,test/kernels test/attention): \
    private TARGETS := -gencode arch=compute_90a,code=$(CODE)_90a
  # nvcc takes a comma for the beginning of another macro
  COMPILE_CU = $(NVCC) -std=c++20 $(OPTIMIZE) -lineinfo $(TARGETS) $(subst $(COMMA),\\$(COMMA),$(DEFINES)) \
    -Xcompiler -Wall,-fno-strict-aliasing $(PIC:%=-Xcompiler %) -Xptxas -v -x cu
  # registers, shared memory and spills of every kernel, beside its object
  KEEP_REPORT = > $(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas) >&2; exit 1; }
  COMPILE_CPP = $(HOST) -I$(CUDA_HOME)/include -x c++
endif
ifeq ($(BACKEND),cuda)
  LIBRARIES += $(CUDA_LIBRARIES) -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -ldl -lrt
  LIBRARIES += $(if $(filter 0,$(NCCL)),,-lnccl)
endif
# The check of the CPU runs on every one, and before all others.
CHECK := $(BUILD)/emulation/processor_check.cpp.o
$(CHECK): private COMPILE_CPP = $(CXX) -std=c++20 -O1 $(PIC) $(if $(PYTORCH),-DPLUSGPT_LIBRARY) $(WARNINGS) -I$(BUILD) \
  -x c++
$(CHECK): $(BUILD)/built_for.inc
# Linked by the host code's compiler: nvcc may use an older one, whose library lacks what that code needs.
LINK = $(CXX)$(if $(SAN), $(OPTIMIZE)) $(LDFLAGS) -o $@ $(filter $(CHECK),$^) \
  $(filter-out $(CHECK),$(filter %.o,$^)) $(LIBRARIES)

# ---- rules: a line for what is made, with V=1 the whole command
SAY = $(if $(V),,@echo '$(1) $(2)';)
IF_NEW = > $@.new && if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi  # written only if it changes
.PHONY: all test tests pytorch check-kind quickstart clean help FORCE
train: $(BUILD)/train FORCE
	@$(if $(KINDS),$(BUILD)/train --help > /dev/null && )ln -sfn $(BUILD)/train train  # refuses wrong parameters
	@$(summary)
	@rm -f $(BUILD)/train.lost
# $@.kinds: what the program has, by name or file; $@.lost: what it had before the last summary of make. Files as they
# are given: a real path may have spaces. check-kind has a program of its own, so that ./train keeps its kinds.
$(BUILD)/train $(BUILD)/check_kind/train: $(BUILD)/main.cpp.o $(TRAIN_OBJECTS) $(BUILD)/objects
	@mkdir -p $(@D)
	$(call SAY,link,$@)$(LINK)
	@touch $@.kinds $@.lost; cat $@.kinds >> $@.lost; printf '%s\n' $(ATTN) $(KINDS) > $@.kinds
# The library, and its check of the CPU apart: nothing else may run before that.
LINK_LIBRARY = $(CXX) -shared $(LDFLAGS) -Wl,--version-script=pytorch/exports.map,--gc-sections,--as-needed -o $@
$(BUILD)/plusgpt_attention.so: $(filter-out $(CHECK),$(TRAIN_OBJECTS)) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK_LIBRARY) $(filter %.o,$^) $(LIBRARIES)
$(BUILD)/plusgpt_processor.so: $(CHECK)
	$(call SAY,link,$@)$(LINK_LIBRARY) $^
LIBRARY_FILES := $(BUILD)/plusgpt_attention.so $(if $(filter cpu,$(BACKEND)),$(BUILD)/plusgpt_processor.so)
pytorch: $(if $(PYTORCH),$(LIBRARY_FILES))  ## the attention kernels as an operator of PyTorch (pytorch/README.md)
	@$(if $(PYTORCH),echo 'pytorch/plusgpt_attention.py has its kernels for $(MADE_FOR)',$(MAKE) PYTORCH=1 pytorch)
REFERENCE := $(patsubst %,$(BUILD)/%.o,$(filter $(ONLY),test/attention/attention_reference.cu))
$(foreach source,$(TEST_SOURCES),$(eval $(call test_program,$(source)): $(BUILD)/$(source).o))
$(TESTS): $(OBJECTS) $(REFERENCE) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK) -lgtest_main -lgtest
$(BUILD)/bench_%: $(BUILD)/dev/bench/%_bench.cu.o $(OBJECTS) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK)

$(BUILD)/%.cu.o: %.cu $(BUILD)/flags $(PRECOMPILED:=.gch)
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(COMPILE_CU) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ $(KEEP_REPORT)
$(BUILD)/%.cpp.o: %.cpp $(BUILD)/flags $(PRECOMPILED:=.gch)
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(COMPILE_CPP) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ $(EXPLAIN)
$(INSTANCES:=.o): %.o: % $(BUILD)/flags $(PRECOMPILED:=.gch)
	$(call SAY,compile,$<)$(COMPILE_CU) -MMD -MP -MF $(@:.o=.d) -c $< -o $@ $(KEEP_REPORT)
$(INSTANCES): $(BUILD)/attention/%.cu: FORCE
	@mkdir -p $(@D); bash scripts/lib/kind_files.sh instance $(*D) $(*F) "$(KIND_FILES) $(KINDS)" $(IF_NEW)
# kinds.cpp reports what is wrong with a file of KINDS, so it is compiled before the kernels of these files.
$(foreach kind,$(FILE_KINDS),$(filter %/$(kind).cu.o,$(INSTANCES:=.o))): | $(BUILD)/attention/kinds.cpp.o
$(BUILD)/attention/kinds.cpp.o: $(BUILD)/kinds.inc
$(BUILD)/attention/kinds.cpp.o: private EXPLAIN = 2> $@.said; result=$$?; \
  bash scripts/lib/kind_files.sh explain $@.said >&2; exit $$result
$(BUILD)/kinds.inc: FORCE
	@mkdir -p $(@D); bash scripts/lib/kind_files.sh list "$(KIND_FILES)" $(KINDS) $(IF_NEW)
$(PRECOMPILED:=.gch): kernels/gpu.cuh $(BUILD)/flags
	@echo '#include "$<"' > $(@:.gch=)
	$(call SAY,compile,$@)$(HOST) -MMD -MP -MF $(@:.h.gch=.d) -x c++-header $(@:.gch=) -o $@

# Objects are rebuilt when the flags change, programs when the list of objects does: both are kept in files.
$(BUILD)/objects: FORCE
	@mkdir -p $(@D); echo '$(OBJECTS)' $(IF_NEW)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); echo '$(COMPILE_CU) $(COMPILE_CPP) $(FEATURES)' $(IF_NEW)
$(BUILD)/built_for.inc: FORCE
	@mkdir -p $(@D); { echo '#define BUILT_FOR "$(BUILT_FOR)"'; \
	  echo '#define NEEDED $(foreach name,$(FEATURES),NEEDS("$(name)"))'; } $(IF_NEW)
# A change of measured figures and documents alone does not make the program another one.
DIRTY = git diff --quiet HEAD -- ':!dev/bench/results' ':!docs/results' ':!*.md' ':!*.png' 2>/dev/null; \
  [ $$? = 1 ] && echo -dirty
COMMIT ?= $(shell git describe --always 2>/dev/null || echo unknown)$(shell $(DIRTY))
$(BUILD)/version.h: FORCE
	@mkdir -p $(@D); echo '#define PLUSGPT_VERSION "$(COMMIT)"' $(IF_NEW)
$(BUILD)/main.cpp.o $(patsubst %,$(BUILD)/dev/bench/%_bench.cu.o,$(BENCHES)): $(BUILD)/version.h
# The text of a Python file, as a C++ string: checkpoints carry it, wherever the program runs.
$(BUILD)/modeling_plusgpt.inc: scripts/lib/modeling_plusgpt.py
	@mkdir -p $(@D); { printf 'R"PYTHON('; cat $<; printf ')PYTHON"\n'; } > $@
$(BUILD)/checkpoint/hugging_face.cpp.o: $(BUILD)/modeling_plusgpt.inc
.DELETE_ON_ERROR:
.PRECIOUS: $(BUILD)/%.cu.o $(BUILD)/%.cpp.o
-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*.d $(BUILD)/*/*/*.d)

tests: $(TESTS)                    ## build every test program
test: train $(TESTS)               ## run every test of this build
	@bash test/support/run.sh $(BUILD) $(TESTS)
# Kinds that are files (attention/score.h). What they promise is tested before the rest is built.
KIND_TESTS := $(addprefix build/cpu/test_,attention attention_reference documents diagnose policies dispatch)
check-kind:                        ## test the kinds of KINDS="my_score.cuh ...", on the CPU
	@[ -n "$(KINDS)" ] || { echo 'check-kind: name the files: make check-kind KINDS="my_score.cuh"' >&2; exit 2; }
	@$(MAKE) BACKEND=cpu ATTN=softmax build/cpu/test_score
	@build/cpu/test_score --gtest_brief=1
	@$(MAKE) BACKEND=cpu ATTN=softmax $(KIND_TESTS)
	@$(MAKE) BACKEND=cpu build/cpu/check_kind/train
	@bash test/attention/check_kind.sh "$(KINDS)" $(KIND_TESTS)
quickstart:                        ## train, evaluate and plot a small model
	bash scripts/quickstart.sh
include dev/dev.mk  # what only maintainers use: benchmarks, sanitizers, fuzzing, PTX without a GPU
clean:                             ## remove build/ and ./train
	rm -rf build train
help:                              ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(filter-out %.d,$(MAKEFILE_LIST)) | expand -t16; sed -n '1,6s/^# \?//p' Makefile
