# Benchmarks: docs in README.md of this folder.
# QUICK=1: two kinds of attention at few lengths and shorter steps, in about a minute; results/ stays as it is.
QUICK_cpu_attention := softmax,lssar 64 128
QUICK_cpu_step := --variants softmax,lssar
QUICK_cuda_attention := softmax,lssar 64 1024,4096
QUICK_cuda_step := --variants softmax,lssar --set batch.tokens=131072
bench: $(BENCHES:%=$(BUILD)/bench_%)  ## speed of the machine, every kernel, attention by kind, whole steps
	@$(foreach part,$(BENCHES), \
	  $(BUILD)/bench_$(part) $(if $(QUICK),$(QUICK_$(BACKEND)_$(part))) --json $(BUILD)/$(part).json &&) true
	-@$(if $(filter cuda,$(BACKEND)),python3 dev/kernel_table.py)
	@python3 dev/bench_table.py --collect $(if $(QUICK),--out $(BUILD)/quick.json) $(BENCHES:%=$(BUILD)/%.json)
