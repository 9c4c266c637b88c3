// tieshard/cli/main.cpp
//
// The torch-free program `tieshard`.
//
// Flow: [this] -> app

#include <csignal>

#include "tieshard/cli/app.h"

int main(int argc, char** argv) {
  // A reader that goes away (`| head`) ends the program quietly, also under a parent that ignores the signal.
  std::signal(SIGPIPE, SIG_DFL);
  return tieshard::cli::run_tieshard(argc, argv, tieshard::cli::standard_console());
}
