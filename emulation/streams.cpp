// Streams, events and copies (streams.h).
#include "emulation/streams.h"
#include <cuda_runtime.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace cpu {
namespace {

struct Queue;
// The first `number` things put on a stream.
struct Point {
  std::shared_ptr<Queue> queue;
  uint64_t number = 0;
};
struct Item {
  std::function<void()> work;
  std::vector<Point> after;
};
struct Queue {
  bool with_default;       // ordered with the default stream
  bool destroyed = false;  // by the program; work that was put there will still be done
  uint64_t put = 0, done = 0;
  std::deque<Item> items;
};

// One lock for all streams, held while a wait runs the work that it waits for. Recursive, because work may throw, log,
// or launch.
struct Streams {
  std::recursive_mutex mutex;
  std::vector<std::shared_ptr<Queue>> all{
      std::make_shared<Queue>(Queue{true, false, 0, 0, {}})};  // the default stream first
  std::map<const char*, size_t> allocated;  // device and pinned memory: copies from there read it when they run
  std::minstd_rand random;
};
Streams& streams() {
  static Streams* one = new Streams;  // never destroyed: destructors of static objects may still use it
  return *one;
}

StreamOrder order_of_environment() {
  const char* text = std::getenv("PLUSGPT_STREAMS");
  std::string name = text ? text : "";
  if (name == "late") return StreamOrder::late;
  if (name.rfind("random", 0) == 0 && name.find_first_not_of("0123456789", 6) == std::string::npos) {
    streams().random.seed(unsigned(std::atoi(name.c_str() + 6)) + 1);
    return StreamOrder::random;
  }
  if (name.empty() || name == "at_once") return StreamOrder::at_once;
  fprintf(stderr, "PLUSGPT_STREAMS=%s is unknown; use at_once, late, or random and a number\n", text);
  exit(2);
}

StreamOrder& chosen() {
  static StreamOrder order = order_of_environment();
  return order;
}

void run_to(const Point& point) {
  Queue& queue = *point.queue;
  while (queue.done < point.number) {
    Item item = std::move(queue.items.front());
    queue.items.pop_front();
    for (const Point& before : item.after) run_to(before);
    queue.done++;
    if (item.work) item.work();
  }
}

Point end_of(const std::shared_ptr<Queue>& queue) { return {queue, queue->put}; }

void run_all() {
  Streams& s = streams();
  std::lock_guard lock(s.mutex);
  for (size_t i = 0; i < s.all.size(); i++) run_to(end_of(s.all[i]));
  std::erase_if(s.all, [&](const auto& queue) { return queue->destroyed; });
}

void run_something() {
  Streams& s = streams();
  while (s.random() % 3 == 0) {
    const std::shared_ptr<Queue>& queue = s.all[s.random() % s.all.size()];
    run_to({queue, queue->done + s.random() % (queue->put - queue->done + 1)});
  }
}

bool is_allocated(const void* p) {
  const char* at = static_cast<const char*>(p);
  auto next = streams().allocated.upper_bound(at);
  return next != streams().allocated.begin() && at < std::prev(next)->first + std::prev(next)->second;
}

}  // namespace
}  // namespace cpu

struct cpu_stream {
  std::shared_ptr<cpu::Queue> queue;
};
struct cpu_event {
  cpu::Point point;  // of the newest record; empty: never recorded, so a wait for it returns at once
  std::shared_ptr<std::chrono::steady_clock::time_point> time;  // of that record; it outlives the event
};

namespace cpu {
namespace {

const std::shared_ptr<Queue>& queue_of(cpu_stream* stream) { return stream ? stream->queue : streams().all[0]; }

Point put(const std::shared_ptr<Queue>& queue, std::function<void()> work, std::vector<Point> after = {}) {
  Streams& s = streams();
  if (queue == s.all[0]) {
    for (const auto& other : s.all)
      if (other != queue && other->with_default) after.push_back(end_of(other));
  } else if (queue->with_default) {
    after.push_back(end_of(s.all[0]));
  }
  queue->items.push_back({std::move(work), std::move(after)});
  queue->put++;
  Point point = end_of(queue);
  if (chosen() == StreamOrder::random) run_something();
  return point;
}

}  // namespace

void put_later(cpu_stream* stream, std::function<void()> work) {
  std::lock_guard lock(streams().mutex);
  put(queue_of(stream), std::move(work));
}

void put_kernel_on(cpu_stream* stream, const Launch& l, std::shared_ptr<const void> arguments) {
  check(l);
  put_later(stream, [l, arguments] { run(l); });
}

bool streams_at_once() { return chosen() == StreamOrder::at_once; }

void keep_back(StreamOrder next) {
  run_all();
  chosen() = next;
}

void note_memory(const void* p, size_t bytes) {
  std::lock_guard lock(streams().mutex);
  streams().allocated[static_cast<const char*>(p)] = bytes;
}
void forget_memory(const void* p) {
  run_all();  // memory must not be freed while work uses it
  std::lock_guard lock(streams().mutex);
  streams().allocated.erase(static_cast<const char*>(p));
}

}  // namespace cpu

using namespace cpu;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  std::lock_guard lock(streams().mutex);
  *s = new cpu_stream{std::make_shared<Queue>(Queue{flags != cudaStreamNonBlocking, false, 0, 0, {}})};
  streams().all.push_back((*s)->queue);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  std::lock_guard lock(streams().mutex);
  s->queue->destroyed = true;
  if (s->queue->items.empty()) std::erase(streams().all, s->queue);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (streams_at_once()) return cudaSuccess;
  std::lock_guard lock(streams().mutex);
  return run_to(end_of(queue_of(s))), cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  if (!streams_at_once()) run_all();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (streams_at_once()) return cudaSuccess;
  std::lock_guard lock(streams().mutex);
  if (e->point.queue) put(queue_of(s), {}, {e->point});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return *e = new cpu_event, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  auto time = e->time = std::make_shared<std::chrono::steady_clock::time_point>();
  auto record = [time] { *time = std::chrono::steady_clock::now(); };
  if (streams_at_once()) return record(), cudaSuccess;
  std::lock_guard lock(streams().mutex);
  e->point = put(queue_of(s), record);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (streams_at_once()) return cudaSuccess;
  std::lock_guard lock(streams().mutex);
  if (e->point.queue) run_to(e->point);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  std::lock_guard lock(streams().mutex);
  for (cudaEvent_t e : {start, end})
    if (e->point.queue && e->point.queue->done < e->point.number) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(*end->time - *start->time).count();
  return cudaSuccess;
}

cudaError_t cudaMemset(void* p, int value, size_t bytes) { return cudaMemsetAsync(p, value, bytes, nullptr); }
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t s) {
  if (bytes) put_on(s, [=] { memset(p, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* p, size_t pitch, int value, size_t width, size_t rows, cudaStream_t s) {
  put_on(s, [=] {
    for (size_t row = 0; row < rows; ++row) memset(static_cast<char*>(p) + row * pitch, value, width);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return kind == cudaMemcpyDeviceToDevice ? cudaSuccess : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, s);
}
// Pageable memory of the host is read at the call, and written by the time that the call returns.
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows,
                              cudaMemcpyKind, cudaStream_t s) {
  if (width == 0 || rows == 0) return cudaSuccess;
  auto copy = [=](const void* from) {
    for (size_t row = 0; row < rows; ++row)
      memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  };
  if (streams_at_once()) return copy(from), cudaSuccess;
  std::lock_guard lock(streams().mutex);
  if (is_allocated(from)) {
    put_on(s, [=] { copy(from); });
  } else {
    const char* begin = static_cast<const char*>(from);
    auto taken = std::make_shared<std::vector<char>>(begin, begin + (rows - 1) * from_pitch + width);
    put_on(s, [=] { copy(taken->data()); });
  }
  return is_allocated(to) ? cudaSuccess : cudaStreamSynchronize(s);
}
