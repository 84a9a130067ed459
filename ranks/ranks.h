// The ranks of a run: processes that train one model together, each with a GPU of its own (on the CPU: just processes).
// They are started by `--gpus N` on this machine (launcher.h), or by torchrun, mpirun or srun, which say in environment
// variables who is who. Rank 0 prints and writes; the others find it at address:port.
#pragma once
#include <string>

struct Ranks {
  int rank = 0, size = 1;
  int local = 0;           // number among the ranks of this machine: which GPU it takes
  std::string address;     // where rank 0 listens
  int port = 0;
  std::string job;         // tells two runs apart that meet at one address
  int patience = 45;       // seconds that ranks wait for one of them, to come or to give a sign of life
  int listener = -1;       // rank 0: a socket that listens there already, -1: none yet
  std::string variables;   // of the environment that said so, for error texts
};

// From the first of these that is there, else one rank alone:
//   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT  torchrun, or set by hand
//   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}       mpirun
//   SLURM_{PROCID,STEP_NUM_TASKS,LOCALID,STEP_NODELIST}     srun, within a job step of several tasks only: in a batch
//                                                           script SLURM_NTASKS tells of tasks that nobody has started
// Without MASTER_ADDR it is this machine (mpirun) or the step's first (srun), without MASTER_PORT a number made of the
// job's id. PLUSGPT_PATIENCE sets the patience, of `--gpus` too; once all have come rank 0's counts. What contradicts
// itself is a user_error.
Ranks ranks_of_environment();

std::string first_host(const std::string& slurm_nodes);  // "node[003-006,010],gpu1" -> "node003"
