#include "tieshard/runtime/mesh/c10d_log.h"

#include <cstdlib>

#include <c10/util/Logging.h>

#include "tieshard/runtime/mesh/deadline_store.h"

namespace tieshard {

QuietC10d::QuietC10d() : level_(FLAGS_caffe2_log_level) {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
}

QuietC10d::~QuietC10d() {
  if (!left_a_question_behind()) {
    FLAGS_caffe2_log_level = level_;
  }
}

} // namespace tieshard
