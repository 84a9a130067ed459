// What the outside asks of a training run. SIGTERM, SIGINT: finish the step, save, end. SIGUSR1: save and go on.
// A second SIGTERM or SIGINT ends the process at once, as the signal would have done. One request may arrive several
// times, sent to all processes and passed on by a launcher: only what comes later than SAME_REQUEST_MS is a second one.
#pragma once
#include <cstdint>

inline constexpr int64_t SAME_REQUEST_MS = 2000;
int64_t milliseconds_now();  // of a clock that only goes forward

void watch_signals();   // from now on; before it main() ignores SIGUSR1, and the others end the process as usual
bool stop_requested();
bool save_requested();  // since the last call
