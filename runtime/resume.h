// Whether a run may continue from a checkpoint: with settings and data that make it the same run. THE configuration table says which
// settings may change (ConfigRow::may_change); further, train.steps may where the learning rate of every step so far stays what it
// was, and data files may move but not change their names, sizes or order.
#pragma once
#include "runtime/checkpoint.h"
#include "runtime/config.h"

// The settings that the checkpoint was written with.
Config saved_config(const Checkpoint& checkpoint);

// A user_error with a list of old and new values. In `now` batch.micro = 0 stands for the checkpoint's.
// train, val: the files of `now`; of val nothing is asked where either run does not evaluate.
void check_same_run(const Checkpoint& checkpoint, const Config& now, const std::vector<DataFile>& train,
                    const std::vector<DataFile>& val);
