#include "kernels/profile.h"

#include <algorithm>
#include <map>

#include "kernels/gpu.cuh"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else  // not part of every toolkit
static int nvtxRangePushA(const char*) { return 0; }
static int nvtxRangePop() { return 0; }
#endif

struct ProfileEvent {
  const char* name;
  cudaEvent_t start, stop;
  KernelResources resources;
};
bool profile_on = false;
static std::vector<ProfileEvent> profile_events;

void ProfileScope::begin(const char* name, const KernelResources& resources) {
  ProfileEvent event{name, {}, {}, resources};
  CUDA_CHECK(cudaEventCreate(&event.start));
  CUDA_CHECK(cudaEventCreate(&event.stop));
  CUDA_CHECK(cudaEventRecord(event.start, stream_));
  index_ = int(profile_events.size());
  profile_events.push_back(event);
}
// Called by a destructor, which must not throw: an event that was not recorded is found by profile_collect().
void ProfileScope::end() { cudaEventRecord(profile_events[index_].stop, stream_); }

void profile_start() { profile_on = true; }

std::vector<ProfileLine> profile_collect() {
  profile_on = false;
  CUDA_CHECK(cudaDeviceSynchronize());
  std::map<std::string, ProfileLine> by_name;
  for (ProfileEvent& event : profile_events) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, event.start, event.stop));
    CUDA_CHECK(cudaEventDestroy(event.start));
    CUDA_CHECK(cudaEventDestroy(event.stop));
    // "(kernel<T, 4>)", "(packed ? kernel<T, 8> : kernel<T, 1>)": without the template arguments
    std::string name = event.name;
    if (size_t question = name.find("? "); question != std::string::npos) name = name.substr(question + 2);
    name = name.substr(name.find_first_not_of('('));
    name = name.substr(0, name.find_first_of("<)"));
    ProfileLine& line = by_name[name];
    line.name = name;
    line.calls++;
    line.ms += ms;
    line.resources = event.resources;
  }
  profile_events.clear();
  std::vector<ProfileLine> lines;
  for (auto& [name, line] : by_name) lines.push_back(line);
  std::sort(lines.begin(), lines.end(), [](const ProfileLine& a, const ProfileLine& b) { return a.ms > b.ms; });
  return lines;
}

struct PhaseMark {
  const char* phase;
  cudaEvent_t event;
};
static bool phases_on = false;
static std::vector<PhaseMark> phase_marks;

void phases_start() { phases_on = true; }

void phase(const char* name, cudaStream_t stream) {
  if (!on_cpu) {  // Nsight watches GPUs, and NVTX sets itself up without a lock: a data race where ranks are threads
    static thread_local bool open = false;
    if (open) nvtxRangePop();
    open = name;
    if (open) nvtxRangePushA(name);
  }
  if (!phases_on) return;
  PhaseMark mark{name, {}};
  CUDA_CHECK(cudaEventCreate(&mark.event));
  CUDA_CHECK(cudaEventRecord(mark.event, stream));
  phase_marks.push_back(mark);
}

std::vector<std::pair<std::string, double>> phases_collect() {
  phases_on = false;
  CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<std::pair<std::string, double>> phases;
  for (size_t i = 0; i < phase_marks.size(); i++) {
    const PhaseMark& mark = phase_marks[i];
    if (!mark.phase || i + 1 == phase_marks.size()) continue;
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, mark.event, phase_marks[i + 1].event));
    auto same = [&](const auto& entry) { return entry.first == mark.phase; };
    auto known = std::find_if(phases.begin(), phases.end(), same);
    if (known == phases.end()) known = phases.insert(known, {mark.phase, 0});
    known->second += ms;
  }
  for (PhaseMark& mark : phase_marks) CUDA_CHECK(cudaEventDestroy(mark.event));
  phase_marks.clear();
  return phases;
}
