// Signals to a training run. SIGTERM, SIGINT, and unless they are ignored SIGHUP (nohup) and SIGPIPE (the program that
// reads the output has ended): finish the step, save, and then die of that signal, so that a shell loop ends and a
// scheduler does not record success.
// SIGUSR1: save and continue.
// A second of the others ends the process at once, as it does by default. One request may arrive several times,
// sent to all processes and also passed on by a launcher: a signal counts as a second request only after
// SAME_REQUEST_MS.
//
// One thread alone takes them: the main thread, in which they end the process, and after watch_signals() a thread that
// only waits. (SIGPIPE comes from a thread's own write.) A handler must never run in a thread that computes: oneDNN's
// kernels use the stack pointer as a pointer into their workspace on the heap, where the handler's frame would be put.
#pragma once
#include <csignal>
#include <cstdint>

inline constexpr int STOP_SIGNALS[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
inline constexpr int64_t SAME_REQUEST_MS = 2000;
int64_t milliseconds_now();  // of a clock that never goes back

bool ignored(int signal);  // by this process
void watch_signals();      // until then SIGUSR1 is ignored, and the others end the process as usual
void block_signals();      // in this thread and those that it starts; before main() for the threads of libraries
void admit_signals();      // in this thread, which must not compute if signals are watched
int stop_signal();         // the first signal that asked to stop; 0: there was none
inline bool stop_requested() { return stop_signal() != 0; }
void stop_by(int signal);  // as if the signal had come, unless one has: another rank got it
bool save_requested();     // whether SIGUSR1 came since the last call

[[noreturn]] void die_of(int signal);  // ends the process as if it handled no signals
