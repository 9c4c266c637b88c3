// tests/support/diagnostics.h
//
// Expectations on what is thrown.

#pragma once

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

namespace tieshard::testing {

/// Runs `action`, which has to throw an Error of `code` with every part of `parts` in its text, and a fix.
inline void expect_refusal(const std::function<void()>& action, Code code, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "expected " << id(code) << ", nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(id(error.diagnostic().code), id(code)) << error.what();
    EXPECT_FALSE(error.diagnostic().fix.empty()) << error.what();
    for (const std::string& part : parts) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  }
}

} // namespace tieshard::testing
