#include "tieshard/runtime/mesh/rank_environment.h"

#include <map>

#include <gtest/gtest.h>

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

using Variables = std::map<std::string, std::string>;

RankEnvironment read(const Variables& variables) {
  return read_rank_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

void expect_bad(const Variables& variables, const std::vector<std::string>& parts) {
  expect_refusal([&] { read(variables); }, Code::kBadEnvironment, parts);
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return variables;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29501"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kSlurm{{"SLURM_PROCID", "2"},
                       {"SLURM_NTASKS", "6"},
                       {"SLURM_LOCALID", "0"},
                       {"SLURM_JOB_ID", "1234567"},
                       {"SLURM_STEP_NODELIST", "gpu[07-09]"}};

TEST(RankEnvironment, IsOneRankWithoutALauncher) {
  const RankEnvironment environment = read({});
  EXPECT_EQ(environment.launcher, Launcher::kNone);
  EXPECT_EQ(environment.rank, 0);
  EXPECT_EQ(environment.world_size, 1);
  EXPECT_EQ(environment.local_rank, 0);
}

TEST(RankEnvironment, ReadsTorchrun) {
  const RankEnvironment environment = read(kTorchrun);
  EXPECT_EQ(environment.launcher, Launcher::kTorchrun);
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.master_addr, "node7");
  EXPECT_EQ(environment.master_port, 29501);
  EXPECT_FALSE(environment.agent_store);
  EXPECT_EQ(environment.attempt, "0");
}

TEST(RankEnvironment, KnowsTorchrunsStoreAndItsRestarts) {
  const RankEnvironment environment =
      read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "3"}}));
  EXPECT_TRUE(environment.agent_store);
  EXPECT_EQ(environment.attempt, "3");
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
}

TEST(RankEnvironment, ReadsOpenMpiOnOneHostWithoutAMeetingPoint) {
  const RankEnvironment environment = read(kOpenMpi);
  EXPECT_EQ(environment.launcher, Launcher::kMpirun);
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_EQ(environment.local_rank, 3);
  EXPECT_EQ(environment.master_addr, "127.0.0.1");
  EXPECT_EQ(environment.master_port, 29500);
}

TEST(RankEnvironment, ReadsMpich) {
  const RankEnvironment environment =
      read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(environment.launcher, Launcher::kMpirun);
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
  EXPECT_EQ(environment.local_rank, 1);
}

TEST(RankEnvironment, MpiOnSeveralHostsNeedsAMeetingPoint) {
  const Variables two_hosts = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  expect_bad(two_hosts, {"MASTER_ADDR", "several hosts", "mpirun -x MASTER_ADDR"});
  EXPECT_EQ(read(with(two_hosts, {{"MASTER_ADDR", "head"}})).master_addr, "head");
}

TEST(RankEnvironment, ReadsSlurmAndMeetsAtItsFirstHost) {
  const RankEnvironment environment = read(kSlurm);
  EXPECT_EQ(environment.launcher, Launcher::kSlurm);
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.world_size, 6);
  EXPECT_EQ(environment.local_rank, 0);
  EXPECT_EQ(environment.master_addr, "gpu07");
  EXPECT_EQ(environment.master_port, 20000 + 1234567 % 20000); // jobs on one host do not meet
}

TEST(RankEnvironment, TakesSlurmsJobNodesWithoutAStep) {
  Variables variables = kSlurm;
  variables.erase("SLURM_STEP_NODELIST");
  variables["SLURM_JOB_NODELIST"] = "n1,n2";
  EXPECT_EQ(read(variables).master_addr, "n1");
}

TEST(RankEnvironment, AMeetingPointOfTheUserHoldsForEveryLauncher) {
  const Variables point{{"MASTER_ADDR", "head"}, {"MASTER_PORT", "4242"}};
  for (const Variables& launcher : {kTorchrun, kOpenMpi, kSlurm}) {
    EXPECT_EQ(read(with(launcher, point)).master_addr, "head");
    EXPECT_EQ(read(with(launcher, point)).master_port, 4242);
  }
}

TEST(RankEnvironment, TorchrunComesBeforeMpiAndMpiBeforeSlurm) {
  EXPECT_EQ(read(with(with(kSlurm, kOpenMpi), kTorchrun)).launcher, Launcher::kTorchrun);
  EXPECT_EQ(read(with(with(kSlurm, kOpenMpi), kTorchrun)).rank, 5);
  EXPECT_EQ(read(with(kSlurm, kOpenMpi)).launcher, Launcher::kMpirun);
}

TEST(RankEnvironment, ASlurmAllocationWithoutATaskIsOneRank) {
  EXPECT_EQ(read({{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "7"}}).world_size, 1); // a shell of salloc
}

TEST(RankEnvironment, ARankWithoutACountIsRefusedForEveryLauncher) {
  expect_bad({{"RANK", "0"}}, {"WORLD_SIZE", "RANK is set to 0"});
  expect_bad({{"OMPI_COMM_WORLD_RANK", "0"}}, {"OMPI_COMM_WORLD_SIZE"});
  expect_bad({{"PMI_RANK", "0"}}, {"PMI_SIZE"});
  EXPECT_EQ(read({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}).world_size, 1); // a batch script of sbatch
}

TEST(RankEnvironment, ACountOfSeveralWithoutARankIsRefused) {
  expect_bad({{"WORLD_SIZE", "4"}}, {"RANK", "WORLD_SIZE is set to 4"});
  EXPECT_EQ(read({{"WORLD_SIZE", "1"}}).world_size, 1);
  EXPECT_EQ(read(with(kSlurm, {{"WORLD_SIZE", "6"}})).launcher, Launcher::kSlurm); // scripts export it for srun's tasks
}

TEST(RankEnvironment, ARankOutsideTheCountIsRefused) {
  expect_bad(with(kTorchrun, {{"RANK", "8"}}), {"RANK", "expected 0 to 7, got 8"});
  expect_bad(with(kTorchrun, {{"RANK", "0"}, {"WORLD_SIZE", "0"}}), {"WORLD_SIZE", "expected at least 1, got 0"});
  expect_bad(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "0"}}), {"OMPI_COMM_WORLD_SIZE", "expected at least 1, got 0"});
}

TEST(RankEnvironment, WhatIsNoNumberIsRefusedByName) {
  expect_bad(with(kTorchrun, {{"RANK", "two"}}), {"RANK", "\"two\""});
  expect_bad(with(kTorchrun, {{"WORLD_SIZE", "8x"}}), {"WORLD_SIZE", "\"8x\""});
  expect_bad(with(kTorchrun, {{"LOCAL_RANK", "-1"}}), {"LOCAL_RANK", "\"-1\""});
  expect_bad(with(kTorchrun, {{"RANK", "99999999999999999999"}}), {"RANK"});
}

TEST(RankEnvironment, APortThatIsNoneIsRefused) {
  for (const char* port : {"0", "65536", "4294996796", "29500.5"}) { // the third is 29500 in 32 bits
    expect_bad(with(kTorchrun, {{"MASTER_PORT", port}}), {"MASTER_PORT", port});
  }
}

TEST(RankEnvironment, TorchrunsSeveralRanksNeedAMeetingPoint) {
  Variables variables = kTorchrun;
  variables.erase("MASTER_ADDR");
  expect_bad(variables, {"MASTER_ADDR", "RANK=5", "WORLD_SIZE=8"});
  variables = kTorchrun;
  variables.erase("MASTER_PORT");
  expect_bad(variables, {"MASTER_PORT"});
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
}

TEST(RankEnvironment, TheUserChoosesTheBackendForEveryLauncher) {
  EXPECT_EQ(read(kTorchrun).backend, BackendChoice::kAuto);
  for (const Variables& launcher : {kTorchrun, kOpenMpi, kSlurm}) {
    EXPECT_EQ(read(with(launcher, {{"TIESHARD_BACKEND", "shm"}})).backend, BackendChoice::kShm);
    EXPECT_EQ(read(with(launcher, {{"TIESHARD_BACKEND", "gloo"}})).backend, BackendChoice::kGloo);
    EXPECT_EQ(read(with(launcher, {{"TIESHARD_BACKEND", "auto"}})).backend, BackendChoice::kAuto);
  }
  expect_bad({{"TIESHARD_BACKEND", "nccl"}}, {"TIESHARD_BACKEND", "expected shm, gloo or auto, got \"nccl\""});
}

TEST(RankEnvironment, TheUserChoosesTheDeviceForEveryLauncher) {
  EXPECT_EQ(read({}).device, DeviceChoice::kCpu);
  for (const Variables& launcher : {kTorchrun, kOpenMpi, kSlurm}) {
    EXPECT_EQ(read(with(launcher, {{"TIESHARD_DEVICE", "cuda"}})).device, DeviceChoice::kCuda);
    EXPECT_EQ(read(with(launcher, {{"TIESHARD_DEVICE", "cpu"}})).device, DeviceChoice::kCpu);
  }
  expect_bad({{"TIESHARD_DEVICE", "cuda:1"}}, {"TIESHARD_DEVICE", "expected cpu or cuda, got \"cuda:1\""});
}

TEST(FirstSlurmHost, IsTheFirstOfEveryFormOfNodeList) {
  const std::map<std::string, std::string> cases{{"n1", "n1"},
                                                 {"n1,n2", "n1"},
                                                 {"node[03-05,9],gpu1", "node03"},
                                                 {"node[7]", "node7"},
                                                 {"node[7,9-11]", "node7"},
                                                 {"a[1-2]b", "a1b"},
                                                 {"a[1-2]b,c", "a1b"},
                                                 {"login,node[1-4]", "login"},
                                                 {"rack[0-1]node[2,5-7],n9", "rack0node2"}};
  for (const auto& [list, first] : cases) {
    EXPECT_EQ(first_slurm_host(list), first) << list;
  }
}

TEST(FirstSlurmHost, RefusesAListThatIsCutOff) {
  expect_refusal([] { first_slurm_host("node[03-05"); }, Code::kBadEnvironment, {"node[03-05", "MASTER_ADDR"});
  expect_refusal([] { first_slurm_host("node["); }, Code::kBadEnvironment, {"node["});
}

} // namespace
} // namespace tieshard::testing
