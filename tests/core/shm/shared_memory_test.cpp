#include "tieshard/core/shm/shared_memory.h"

#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tieshard/core/base/error.h"

#include "tests/support/diagnostics.h"

namespace tieshard::testing {
namespace {

/// Runs `body` in another process; true if it returned true.
template <typename Body>
bool elsewhere(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(SharedMemory, WhatOneProcessWritesAnotherReads) {
  const auto memory = SharedMemory::create(4096);
  ASSERT_EQ(memory->size(), 4096U);
  memory->data()[4095] = std::byte{7};
  const std::string address = memory->address().to_text();
  EXPECT_TRUE(elsewhere([&] {
    const auto same = SharedMemory::open(SharedMemoryAddress::from_text(address));
    const bool read = same->size() == 4096 && same->data()[4095] == std::byte{7};
    same->data()[0] = std::byte{9};
    return read;
  }));
  EXPECT_EQ(memory->data()[0], std::byte{9});
}

TEST(SharedMemory, BeginsWithZeros) {
  const auto memory = SharedMemory::create(1 << 20);
  EXPECT_EQ(std::count(memory->data(), memory->data() + memory->size(), std::byte{0}), 1 << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 64, 0U);
}

TEST(SharedMemory, HasNoNameInAnyFolder) {
  const auto entries = [] {
    return std::distance(std::filesystem::directory_iterator("/dev/shm"), std::filesystem::directory_iterator());
  };
  const auto before = entries();
  const auto memory = SharedMemory::create(4096);
  EXPECT_LE(entries(), before);
}

TEST(SharedMemory, CannotBeOpenedOnceItsDescriptorIsClosed) {
  const auto memory = SharedMemory::create(4096);
  const SharedMemoryAddress address = memory->address();
  memory->close_descriptor();
  expect_refusal([&] { SharedMemory::open(address); }, Code::kIoFailed, {concat("/proc/", ::getpid(), "/fd/")});
  memory->data()[0] = std::byte{1}; // stays mapped
}

TEST(SharedMemory, AFileThatIsAnotherIsRefused) {
  const auto memory = SharedMemory::create(4096);
  SharedMemoryAddress address = memory->address();
  ++address.token;
  expect_refusal([&] { SharedMemory::open(address); }, Code::kIoFailed, {"the file of another process"});
  address = memory->address();
  ++address.bytes;
  expect_refusal([&] { SharedMemory::open(address); }, Code::kIoFailed, {"expected 4161 bytes, got 4160"});
}

TEST(SharedMemory, CannotBeCutUnderneathTheOthers) {
  const auto memory = SharedMemory::create(4096);
  EXPECT_NE(::ftruncate(memory->address().descriptor, 0), 0);
}

TEST(SharedMemory, MoreThanItsLimitIsRefused) {
  expect_refusal([] { SharedMemory::create(SharedMemory::kMostBytes + 1); },
                 Code::kIoFailed,
                 {"memory file of", "at most 1073741824 bytes"});
}

TEST(SharedMemoryAddress, IsReadAsWritten) {
  const SharedMemoryAddress address{.process = 4711, .descriptor = 5, .bytes = 1 << 20, .token = ~std::uint64_t{0}};
  const SharedMemoryAddress same = SharedMemoryAddress::from_text(address.to_text());
  EXPECT_EQ(same.process, 4711);
  EXPECT_EQ(same.descriptor, 5);
  EXPECT_EQ(same.bytes, 1U << 20);
  EXPECT_EQ(same.token, ~std::uint64_t{0});
  for (const char* text : {"", "1 2 3", "1 2 3 four", "1 2 3 4 5"}) {
    expect_refusal([&] { SharedMemoryAddress::from_text(text); }, Code::kIoFailed, {"four numbers"});
  }
}

} // namespace
} // namespace tieshard::testing
