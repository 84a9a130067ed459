# The targets of maintainers: benchmarks, sanitizers, the CUDA build's PTX without a GPU, fuzzing, everything at once.
.PHONY: bench headers check-asan check-tsan sanitizer-tests check-ptx ptx-tests fuzz \
  cuda-subset cuda-objects check-full
# Benchmarks (dev/bench/README.md). QUICK=1: two kinds of attention at few lengths and shorter steps, in about a minute;
# dev/bench/results/ stays as it is.
QUICK_cpu_attention := softmax,lssar 64 128
QUICK_cpu_step := --variants softmax,lssar
QUICK_cuda_attention := softmax,lssar 64 1024,4096
QUICK_cuda_step := --variants softmax,lssar --set batch.tokens=131072
bench: $(BENCHES:%=$(BUILD)/bench_%)  ## speed of the machine, every kernel, attention by kind, whole steps
	@$(foreach part,$(BENCHES), \
	  $(BUILD)/bench_$(part) $(if $(QUICK),$(QUICK_$(BACKEND)_$(part))) --json $(BUILD)/$(part).json &&) true
	-@$(if $(filter cuda,$(BACKEND)),python3 dev/kernel_table.py)
	@python3 dev/bench_table.py --collect $(if $(QUICK),--out $(BUILD)/quick.json) $(BENCHES:%=$(BUILD)/%.json)
# Without UBSan's checks of pointers, a third of a kernel's compile time: AddressSanitizer notices when one is used.
SANITIZER_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined \
  -fno-sanitize=null,object-size,pointer-overflow,vptr
SANITIZER_tsan := -fsanitize=thread
# Fuzzing of the readers of untrusted bytes, with clang's libFuzzer. New inputs go to build/fuzz/NAME_corpus.
# `replay_NAME FILE...` tries inputs without libFuzzer: check-asan, those of test/fuzz/corpus.
FUZZ_SECONDS ?= 20
FUZZERS := config shards safetensors tasks
FUZZ_SOURCES := $(addsuffix .cpp,attention/kinds attention/families \
  $(addprefix base/,error format json text file checksum) \
  $(addprefix settings/,table kind_keys layers read check show) checkpoint/safetensors data/shards data/benchmark_file)
FUZZ_CXX := clang++ -std=c++20 -O1 -g1 -fsanitize=fuzzer-no-link $(SANITIZER_asan) -I. -I$(BUILD) $(KIND_NAMES)
build/fuzz/attention/kinds.o: $(BUILD)/kinds.inc
build/fuzz/%.o: %.cpp
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(FUZZ_CXX) -MMD -MP -c $< -o $@
build/fuzz/%: build/fuzz/test/fuzz/%_fuzz.o $(FUZZ_SOURCES:%.cpp=build/fuzz/%.o)
	$(call SAY,link,$@)$(subst fuzzer-no-link,fuzzer,$(FUZZ_CXX)) $^ -o $@
.PRECIOUS: build/fuzz/%.o
$(BUILD)/replay_%: $(BUILD)/test/fuzz/%_fuzz.cpp.o $(BUILD)/test/fuzz/replay.cpp.o $(FUZZ_SOURCES:%=$(BUILD)/%.o)
	$(call SAY,link,$@)$(LINK)
-include $(wildcard build/fuzz/*/*.d build/fuzz/*/*/*.d)
fuzz: $(FUZZERS:%=build/fuzz/%)    ## fuzz the readers of untrusted files, FUZZ_SECONDS=20 each
	@bash test/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZERS)
# Compilers take most of a check's time, so without FULL=1 a sanitizer gets only the files that its finds have come
# from. AddressSanitizer's were in kernels, the CPU layer and readers, which compute addresses: these are tested, with
# one kind in two families (Hopper's moves its tiles by copies, which hopper_test has), and rooms that call them are
# not. ThreadSanitizer's were in what has threads: ranks and the CPU layer. Without it, a kernel that lacks a barrier is
# seen where an order of blocks and lanes changes its bits (SameBitsInAnyOrder).
ASAN_PART := ATTN=softmax HEAD_DIM=64 FAMILIES="general tensor" ONLY="base/% kernels/% data/% emulation/% attention/% \
  $(addprefix test/,base/% data/% emulation/% $(addprefix kernels/,hopper% kernels% matmul_test% portability%) \
  $(addprefix attention/,attention_test% attention_reference.cu bias% diagnose% gate% prepare%))"
TSAN_PART := FAMILIES= ONLY="base/% kernels/% data/% emulation/% ranks/% \
  $(addprefix test/,ranks/comm% emulation/% data/data% kernels/hopper% kernels/portability%)"
check-asan:                        ## kernels and readers under AddressSanitizer + UBSan; planted bugs must be found
	@$(MAKE) BACKEND=cpu SAN=asan $(if $(FULL),,$(ASAN_PART)) sanitizer-tests
check-tsan:                        ## what has threads under ThreadSanitizer; planted races must be found
	@$(MAKE) BACKEND=cpu SAN=tsan $(if $(FULL),,$(TSAN_PART)) sanitizer-tests
LONG_tsan := comm spared portability cpu_layer data gate hopper hopper_operands attention kernels matmul model
WATCHED := $(or $(if $(FULL),$(LONG_$(SAN):%=$(BUILD)/test_%)),$(TESTS))
sanitizer-tests: $(WATCHED) $(BUILD)/planted_bugs $(if $(filter asan,$(SAN)),$(FUZZERS:%=$(BUILD)/replay_%))
	@bash test/support/run.sh $(BUILD) $(WATCHED)
$(BUILD)/planted_bugs: $(BUILD)/test/emulation/cpu_planted_bugs.cu.o $(OBJECTS) $(BUILD)/objects
	$(call SAY,link,$@)$(LINK)
# PTX_ARCH=80: what Ampere gets of it. The rest of the programs, and the long tests, with FULL=1.
PTX_ARCH ?= 90
override PTX_ARCH := $(patsubst 90,90a,$(PTX_ARCH))
PTX_TESTS := ptx $(if $(filter 90a,$(ARCH)),hopper hopper_operands hopper_turns hopper_heads) tensor_core attention \
  documents prune maths kernels mlp gate output kv_heads prepare matmul $(if $(FULL),model muon)
ptx-tests: $(PTX_TESTS:%=$(BUILD)/test_%)
check-ptx:                         ## the CUDA build's tests on its PTX, without a GPU; planted bugs must be noticed
	@if [ -n "$(HAVE_NVCC)" ]; then \
	   $(MAKE) BACKEND=ptx ARCH=$(PTX_ARCH) $(if $(FULL),,ATTN="softmax lssar" HEAD_DIM="64 128") ptx-tests && \
	   bash dev/test/ptx.sh build/ptx-$(PTX_ARCH); \
	 else echo 'check-ptx: there is no nvcc, nothing is checked'; fi
ifeq ($(BACKEND),ptx)
  COMPILE_CU += -no-compress
  # one operation of PTX is one of C++: nothing is contracted or moved across a change of the rounding
  $(BUILD)/dev/ptx/%.cpp.o: private COMPILE_CPP += -march=$(MARCH) -ffp-contract=off -frounding-math
endif
# Every header compiles alone, without what the files that include it today, or this compiler's library, include before.
# One that a source includes first has been shown to, where that was compiled.
SHOWN := $(shell grep -hm1 '^\#include' $(SOURCES) $(TEST_SOURCES) | sed -n 's/.*"\(.*\)"/\1/p')
HEADERS := $(filter-out build/% $(SHOWN),$(wildcard *.h *.cuh */*.h */*.cuh */*/*.h */*/*.cuh))
headers: $(if $(filter cpu,$(BACKEND)),$(HEADERS:%=$(BUILD)/%.alone))
$(BUILD)/%.alone: % $(BUILD)/flags $(BUILD)/version.h
	@mkdir -p $(@D)
	$(call SAY,compile,$<)$(HOST) -MMD -MP -MF $@.d -MT $@ -fsyntax-only -x c++ -include $< /dev/null && touch $@
# The routine check compiles what nvcc and CUDA's headers alone can refuse; it links nothing. No kernel may spill.
CALL_CUDA := $(shell grep -l 'cuda[A-Z]' $(filter %.cpp,$(SOURCES)))
cuda-objects: $(filter %.cu.o,$(TRAIN_OBJECTS)) $(CALL_CUDA:%=$(BUILD)/%.o)
cuda-subset:                       ## compile CUDA code: one target, one kind, one head size (FULL=1: the whole build)
	@$(MAKE) BACKEND=cuda ARCH=$(lastword $(ARCH)) \
	  $(if $(FULL),build/cuda/train,ATTN=lssar HEAD_DIM=64 WITH_PTX= OPTIMIZE=-O0 cuda-objects)
check-full: train                  ## everything, the long sanitizer runs, fuzzing and every CUDA kernel included
	@FULL=1 $(MAKE) check-kind KINDS="$(patsubst %,test/attention/kinds/%.cuh,bump mixture)"
	@FULL=1 $(MAKE) test check-asan check-tsan -j1
	@[ -z "$(HAVE_NVCC)" ] || FULL=1 $(MAKE) cuda-subset  # for the tests of Python too
	@FULL=1 TRAIN=$(CURDIR)/$(BUILD)/train \
	  bash -c '. scripts/lib/common.sh && "$$(find_python)" -m unittest discover -s test -p "test_*.py"'
	@$(MAKE) fuzz FUZZ_SECONDS=300
	@[ -z "$(HAVE_NVCC)" ] || { python3 dev/kernel_table.py && FULL=1 $(MAKE) check-ptx; }
