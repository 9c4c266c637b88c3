// Runs in processes of their own: the allocator of a process is changed for good.

#include "tieshard/runtime/tensors/heap_allocator.h"

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/core/base/process_memory.h"

namespace tieshard::testing {
namespace {

void in_a_process(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    use_heap_allocator();
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

at::Tensor tensor_of(std::int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}

TEST(HeapAllocator, GivesAlignedMemoryOfEverySizeThatHoldsWhatIsWritten) {
  in_a_process([] {
    std::vector<at::Tensor> held;
    for (const std::int64_t bytes : {1, 63, 64, 4097, (32 << 20) - 100, 32 << 20, 70 << 20}) {
      held.push_back(tensor_of(bytes));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held.back().data_ptr()) % 64, 0U) << bytes;
      held.back().fill_(static_cast<int>(held.size()));
    }
    for (std::size_t index = 0; index < held.size(); ++index) {
      EXPECT_TRUE((held[index] == static_cast<int>(index + 1)).all().item<bool>()) << index;
    }
    EXPECT_EQ(tensor_of(0).numel(), 0);
  });
}

TEST(HeapAllocator, FreesWhatLibTorchsOwnAllocatorNeverSawAndLeavesItsTensorsAlone) {
  in_a_process([] {
    at::Tensor resized = tensor_of(100).fill_(7);
    resized.resize_({50 << 20});
    EXPECT_EQ(resized[99].item<int>(), 7);
    use_heap_allocator(); // again
    EXPECT_EQ(at::full({3}, 2.0).sum().item<float>(), 6.0F);
  });
}

/// What a training step does: tensors are made, some are kept, others freed, and the next step makes the same again.
TEST(HeapAllocator, ThePeakOfManyStepsIsThatOfOne) {
  in_a_process([] {
    const auto step = [] {
      std::vector<at::Tensor> activations;
      for (int layer = 0; layer < 60; ++layer) {
        activations.push_back(at::zeros({1 << 20}, at::kByte));
        activations.push_back(at::zeros({(2 << 20) + 64}, at::kByte));
      }
      const at::Tensor large = at::zeros({40 << 20}, at::kByte);
      std::vector<at::Tensor> gradients;
      while (!activations.empty()) {
        activations.pop_back();
        gradients.push_back(at::zeros({600 << 10}, at::kByte));
      }
    };
    step();
    const std::uint64_t once = peak_resident_bytes();
    for (int i = 0; i < 20; ++i) {
      step();
    }
    EXPECT_LT(peak_resident_bytes() - once, std::uint64_t{20} << 20);
  });
}

TEST(HeapAllocator, ReusesALargeBlockOfAboutThatSizeAndGivesTheOthersBack) {
  in_a_process([] {
    const void* first = nullptr;
    {
      const at::Tensor large = tensor_of(100 << 20);
      first = large.data_ptr();
    }
    {
      const at::Tensor again = tensor_of(95 << 20);
      EXPECT_EQ(again.data_ptr(), first);
    }
    tensor_of(std::int64_t{300} << 20).fill_(1); // does not fit: the smaller block goes back, nothing piles up
    tensor_of(std::int64_t{700} << 20).fill_(1);
    EXPECT_LT(resident_bytes(), std::uint64_t{1200} << 20);
  });
}

TEST(HeapAllocator, RefusesWhatNoMachineHas) {
  in_a_process([] { EXPECT_ANY_THROW(tensor_of(std::int64_t{1} << 60)); });
}

} // namespace
} // namespace tieshard::testing
