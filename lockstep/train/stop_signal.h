#pragma once

// SIGTERM, SIGINT and the signal that LOCKSTEP_STOP_SIGNAL names ask training
// to stop after its step; a second one ends the process at once. install()
// once, from main.

namespace lockstep::train {

void install_stop_signals();
bool stop_requested();
int stop_signal();  // its number, or 0

}  // namespace lockstep::train
