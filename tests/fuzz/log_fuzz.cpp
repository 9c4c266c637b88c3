// tests/fuzz/log_fuzz.cpp
//
// A trainer's log of arbitrary bytes: it is read to its end in bounded memory, and what is recognised has all its
// parts.

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "tieshard/core/failures/checklist.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream log(std::string(reinterpret_cast<const char*>(data), size));
  const tieshard::LogFacts facts = tieshard::read_log(log);
  if (facts.exceptions.size() > 256 || facts.telling.size() > 64 || facts.lines > size) {
    std::abort();
  }
  for (const tieshard::LogException& exception : facts.exceptions) {
    if (exception.type.empty() || exception.line == 0 || exception.line > facts.lines ||
        exception.message.size() > (20 << 10)) {
      std::abort();
    }
  }
  const tieshard::LogDiagnosis diagnosis = tieshard::recognise(facts);
  for (const tieshard::Recognised& found : diagnosis.failures) {
    const tieshard::Diagnostic finding = tieshard::finding_of(found);
    if (finding.what.empty() || finding.where.empty() || finding.why.empty() || finding.fix.empty() ||
        tieshard::walk(found, std::nullopt).size() != found.failure->steps.size()) {
      std::abort();
    }
  }
  if (tieshard::unknown_finding(facts, diagnosis).why.empty()) {
    std::abort();
  }
  return 0;
}
