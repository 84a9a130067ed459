#include "attention/families.h"

#include "base/error.h"

// By counts (dev/bench/LOG.md) whole heads take 0.76 of two kernels' time: so blocks must have heads for a larger share
// of the time, and the sums of dQ must stay in the L2, where tiles need room too. Multiprocessors that are spared for
// other kernels do not count: the workspace is planned without them.
static bool heads_pay(const FamilyQuery& q) {
  return heads_occupy(q.multiprocessors, q.heads, 0.85) && dq_sums_bytes(q.multiprocessors, q.T) <= 0.75 * q.l2_bytes;
}

// Of all families that multiply in bf16.
static std::string products_lack(const FamilyQuery& q) {
  if (q.fp32) return "precision = \"fp32\"";
  bool masked = q.has_bias || q.is_separate;
  int widest = masked ? q.widest_masked : q.widest;
  if (q.D <= widest) return "";
  return format("heads of more than %d channels%s", widest, masked ? ", with a bias or separate documents" : "");
}

// The copy engine needs heads that begin at multiples of 16 bytes, rows that are whole heads apart, and arrays at
// multiples of 128 bytes (CUDA Programming Guide 4.11.2; the driver's own header asks for 16), the bias at 16.
static std::string hopper_lacks(const FamilyQuery& q) {
  if (q.D % 8 != 0) return "heads that are not a multiple of 8 channels";
  return q.row_stride % q.D != 0 || !q.aligned ? "these addresses and strides" : products_lack(q);
}

static bool is_hopper(const FamilyQuery& q) { return !q.on_cpu && q.major == 9; }

std::vector<FamilyRow>& family_rows() {
  static std::vector<FamilyRow> rows = {
      // The forward pass of hopper, and a backward pass that no GPU has run. It leaves when an H200 has timed it and it
      // does not beat hopper's two kernels (VISIT=backward of dev/gpu_session.sh).
      {"hopper_heads", "GPUs of compute capability 9.0", is_hopper, heads_pay,
       [](const FamilyQuery& q) -> std::string {
         if (q.has_bias || q.is_separate) return "a bias or separate documents";
         return q.D > 64 ? "heads of more than 64 channels" : hopper_lacks(q);
       },
       nullptr},
      {"hopper", "GPUs of compute capability 9.0", is_hopper, nullptr, hopper_lacks, "NVIDIA H200, 74643ab"},
      {"onednn", "CPUs with instructions for bf16, with oneDNN",
       [](const FamilyQuery& q) { return q.on_cpu && q.has_instructions; }, nullptr, products_lack,
       "AMD EPYC with AVX512_BF16, 3ce2b53"},
      // All that has run of it is its tests: nothing else has their calls on the GPUs that take it.
      {"tensor", "GPUs of compute capability 8.0 or later", [](const FamilyQuery& q) { return !q.on_cpu; }, nullptr,
       products_lack, "NVIDIA H200, b0612b4: tests, not timed"},
      // On a GPU the tiles leave no registers for other masks than the causal one: some of these kernels would spill.
      {"general", "all devices", [](const FamilyQuery&) { return true; }, nullptr,
       [](const FamilyQuery& q) -> std::string {
         return q.on_cpu || !q.hides_or_adds ? "" : "a window, a bias or separate documents on a GPU";
       },
       "AMD EPYC, ebebd5a; NVIDIA H200, b0612b4: tests, not timed"}};
  return rows;
}
