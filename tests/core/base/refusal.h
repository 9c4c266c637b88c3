// tests/core/base/refusal.h
//
// Holds that a call is refused with one code, by an error that names what has to be named and has all four parts.

#pragma once

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error.h"

namespace tieshard {

/// Fails unless `diagnostic` has `code`, all four parts, and each of `named` somewhere in its text.
inline void expect_names(const Diagnostic& diagnostic, Code code, const std::vector<std::string>& named) {
  const std::string text = diagnostic.to_string();
  EXPECT_EQ(id(diagnostic.code), id(code)) << text;
  EXPECT_FALSE(diagnostic.what.empty() || diagnostic.where.empty() || diagnostic.fix.empty()) << text;
  EXPECT_THAT(diagnostic.why, testing::AllOf(testing::StartsWith("expected "), testing::HasSubstr("got")));
  for (const std::string& part : named) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
}

/// Fails unless `call` throws `Exception` with such a diagnostic.
template <typename Exception, typename Call>
void expect_refusal(Code code, const std::vector<std::string>& named, Call&& call) {
  try {
    call();
  } catch (const Exception& error) {
    expect_names(error.diagnostic(), code, named);
    return;
  } catch (const Error& error) {
    ADD_FAILURE() << "another class of error: " << error.what();
    return;
  }
  ADD_FAILURE() << "not refused, expected " << id(code);
}

} // namespace tieshard
