// What the outside asks of a training run. SIGTERM, SIGINT: finish the step, save, end. SIGUSR1: save and go on.
// A second SIGTERM or SIGINT ends the process at once, as the signal would have done.
#pragma once

void watch_signals();   // from now on; programs that never call it die of these signals as usual
bool stop_requested();
bool save_requested();  // since the last call
