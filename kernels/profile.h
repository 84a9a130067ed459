// Time by kernel and by phase, for benchmarks. Off unless a benchmark switches it on: then launch() and matmul() put an
// event before and after what they start, and profile_collect() adds up the times by name.
//   profile_start(); step(); for (ProfileLine& line : profile_collect()) ...
// Phases cost an event each where one begins, so a step may be timed while they are on.
//   phases_start(); step(); for (auto& [phase, ms] : phases_collect()) ...
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

// What a block of a kernel takes on a GPU; all 0 on the CPU, and for what is no kernel of ours.
struct KernelResources {
  int threads = 0, registers = 0, spilled = 0,
      shared = 0;  // per thread: registers, bytes in local memory; shared: bytes of a block
  int blocks = 0;                                           // resident on a multiprocessor at once
};

struct ProfileLine {
  std::string name;
  int calls = 0;
  double ms = 0;
  KernelResources resources;  // of its last launch
};

struct ProfileEvent {
  std::string name;  // as written at the launch
  cudaEvent_t start, stop;
  KernelResources resources;
};
inline bool profile_on = false;
inline std::vector<ProfileEvent> profile_events;

// Times the work put on the stream while the object lives.
class ProfileScope {
 public:
  ProfileScope(const char* name, cudaStream_t stream) : stream_(stream) {
    if (!profile_on) return;
    profile_events.push_back({name, {}, {}, {}});
    cudaEventCreate(&profile_events.back().start);
    cudaEventCreate(&profile_events.back().stop);
    cudaEventRecord(profile_events.back().start, stream);
    index_ = int(profile_events.size()) - 1;
  }
  ~ProfileScope() {
    if (index_ >= 0) cudaEventRecord(profile_events[index_].stop, stream_);
  }
  ProfileScope(const ProfileScope&) = delete;
  void note(const KernelResources& resources) { profile_events[index_].resources = resources; }

 private:
  cudaStream_t stream_;
  int index_ = -1;
};

inline void profile_start() { profile_on = true; }

// Waits for the device, switches profiling off; the lines with the most time first.
inline std::vector<ProfileLine> profile_collect() {
  profile_on = false;
  cudaDeviceSynchronize();
  std::map<std::string, ProfileLine> by_name;
  for (ProfileEvent& event : profile_events) {
    float ms = 0;
    cudaEventElapsedTime(&ms, event.start, event.stop);
    cudaEventDestroy(event.start);
    cudaEventDestroy(event.stop);
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
  const char* phase;  // that begins here; nullptr: the step ends
  cudaEvent_t event;
};
inline bool phases_on = false;
inline std::vector<PhaseMark> phase_marks;

inline void phase(const char* name, cudaStream_t stream) {
  if (!phases_on) return;
  phase_marks.push_back({name, {}});
  cudaEventCreate(&phase_marks.back().event);
  cudaEventRecord(phase_marks.back().event, stream);
}

inline void phases_start() { phases_on = true; }

// Waits for the device, switches the marks off; milliseconds on the device in the order in which the phases came first.
inline std::vector<std::pair<std::string, double>> phases_collect() {
  phases_on = false;
  cudaDeviceSynchronize();
  std::vector<std::pair<std::string, double>> phases;
  for (size_t i = 0; i < phase_marks.size(); i++) {
    const PhaseMark& mark = phase_marks[i];
    if (!mark.phase || i + 1 == phase_marks.size()) continue;
    float ms = 0;
    cudaEventElapsedTime(&ms, mark.event, phase_marks[i + 1].event);
    auto same = [&](const auto& entry) { return entry.first == mark.phase; };
    auto known = std::find_if(phases.begin(), phases.end(), same);
    if (known == phases.end()) known = phases.insert(known, {mark.phase, 0});
    known->second += ms;
  }
  for (PhaseMark& mark : phase_marks) cudaEventDestroy(mark.event);
  phase_marks.clear();
  return phases;
}
