// Time by kernel and by phase, for benchmarks. Off unless a benchmark switches it on: then LAUNCH() and matmul() put an
// event before and after their work, and profile_collect() adds up the times by name.
//   profile_start(); step(); for (ProfileLine& line : profile_collect()) ...
// A phase costs one event, where it begins, so a step may be timed while phases are on.
//   phases_start(); step(); for (auto& [phase, ms] : phases_collect()) ...
// A phase is a range of NVTX too, whether phases are on or not: Nsight Systems shows a step by its phases.
#pragma once
#include <cuda_runtime.h>

#include <string>
#include <utility>
#include <vector>

// A launch: its blocks, and what one of them takes on a GPU (on the CPU 0). All 0 for library kernels.
struct KernelResources {
  int launched = 0;  // blocks of the grid
  int threads = 0;
  int registers = 0;  // of a thread
  int spilled = 0;    // bytes of a thread in local memory
  int shared = 0;     // bytes of shared memory
  int blocks = 0;     // resident on a multiprocessor at once
};

struct ProfileLine {
  std::string name;
  int calls = 0;
  double ms = 0;
  KernelResources resources;  // of its last launch
};

extern bool profile_on;
void profile_start();
// Waits for the device and switches profiling off. The lines with the most time come first.
std::vector<ProfileLine> profile_collect();

// Times the work put on the stream while the object exists. name: as written at the launch; the pointer is kept.
class ProfileScope {
 public:
  ProfileScope(const char* name, cudaStream_t stream, const KernelResources& resources = {}) : stream_(stream) {
    if (profile_on) begin(name, resources);
  }
  ~ProfileScope() {
    if (index_ >= 0) end();
  }
  ProfileScope(const ProfileScope&) = delete;

 private:
  void begin(const char* name, const KernelResources&);
  void end();
  cudaStream_t stream_;
  int index_ = -1;
};

void phases_start();
void phase(const char* name, cudaStream_t stream);  // a phase begins here; nullptr: the step ends
// Waits for the device and switches phases off. Milliseconds on the device, in the order of each phase's first mark.
std::vector<std::pair<std::string, double>> phases_collect();
