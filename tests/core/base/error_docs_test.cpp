// docs/errors.md against the compiled table of codes; tests/house/test_errors_doc.py looks at what each entry says.

#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tieshard/core/base/error_codes.h"

namespace tieshard {
namespace {

TEST(ErrorDocs, HaveOneHeadingForEachCodeAndNoOther) {
  std::set<std::string> codes;
#define TIESHARD_INSERT(enumerator, text, rule) EXPECT_TRUE(codes.insert(text).second) << text << " stands twice";
  TIESHARD_ERROR_CODES(TIESHARD_INSERT)
#undef TIESHARD_INSERT

  std::ifstream docs(TIESHARD_ERROR_DOCS);
  ASSERT_TRUE(docs) << "docs/errors.md cannot be read";
  std::set<std::string> undocumented = codes;
  std::set<std::string> headings;
  for (std::string line; std::getline(docs, line);) {
    if (line.starts_with("## ")) {
      const std::string heading = line.substr(3);
      EXPECT_TRUE(headings.insert(heading).second) << heading << " has two entries";
      EXPECT_TRUE(codes.contains(heading)) << heading << " is no code";
      undocumented.erase(heading);
    }
  }
  EXPECT_THAT(undocumented, testing::IsEmpty());
}

} // namespace
} // namespace tieshard
