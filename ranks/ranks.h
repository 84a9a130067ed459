// The ranks of a run: processes that train one model together, each with a GPU of its own (on the CPU: just processes).
// They are started by `--gpus N` on this machine (spawn.h), or by torchrun, mpirun or srun, which give each process its
// number in environment variables. Rank 0 prints and writes; the others connect to it at address:port.
#pragma once
#include <string>

constexpr int MOST_TIMEOUT = 86400;  // seconds

struct Ranks {
  int rank = 0, size = 1;
  int local = 0;        // number among the ranks of this machine; the GPU to use
  std::string address;  // where rank 0 listens
  int port = 0;
  std::string job;       // an id, by which rank 0 tells its ranks from those of another run
  int timeout = 45;      // seconds to wait for a rank to connect, and later for a heartbeat
  int listener = -1;     // at rank 0: a socket that already listens at address:port; -1: none yet
  bool spawned = false;  // by `--gpus`: if a signal stopped it, it exits with 128 + SIGNAL, and its parent dies of that
  std::string variables;  // names of the environment variables that were read, for error texts
};

// Reads the first of these groups that is set; without any, there is one rank:
//   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT  torchrun, or set by hand
//   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}       mpirun of Open MPI
//   PMI_{RANK,SIZE}, MPI_{LOCALRANKID,LOCALNRANKS}          mpirun of MPICH or Intel MPI
//   SLURM_{PROCID,STEP_NUM_TASKS,LOCALID,STEP_NODELIST}     srun, only in a job step: in a batch script SLURM_NTASKS
//                                                           counts tasks that are not started
// Without MASTER_ADDR, the address is this machine (mpirun) or the first machine of the step (srun). Without
// MASTER_PORT, the port follows from the job's id. PLUSGPT_TIMEOUT sets the timeout, also with `--gpus`; once a rank
// is connected, rank 0's counts. Missing values, values that contradict each other, and several ranks of a launcher
// that is not among these are a user_error.
Ranks ranks_of_environment();

// "node[003-006,010],gpu1" -> "node003"; "" if a bracket is not closed.
std::string first_host(const std::string& slurm_nodes);
