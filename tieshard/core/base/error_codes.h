// tieshard/core/base/error_codes.h
//
// The table of everything that can be wrong: enumerator, stable id, rule. docs/errors.md has one entry per id (a test
// compares the two). Never rename an id once it is released.
//
// Flow: error.h -> [this]

#pragma once

// clang-format off
#define TIESHARD_ERROR_CODES(X) \
  /* base: files and JSON */ \
  X(kFileNotFound,         "file-not-found",         "a file that is needed is not there") \
  X(kFileUnreadable,       "file-unreadable",        "a file is there but cannot be opened") \
  X(kFileTooLarge,         "file-too-large",         "a text file is larger than any of its kind") \
  X(kIoFailed,             "io-failed",              "the kernel refused a read, write, fsync or rename") \
  X(kDiskFull,             "disk-full",              "there is no room on the disk") \
  X(kJsonMalformed,        "json-malformed",         "text is not JSON") \
  X(kJsonDuplicateKey,     "json-duplicate-key",     "a key stands twice in one JSON object") \
  X(kJsonNotUtf8,          "json-not-utf8",          "JSON text is not UTF-8") \
  X(kJsonTooDeep,          "json-too-deep",          "JSON is nested too deeply") \
  /* checkpoint: safetensors */ \
  X(kFileEmpty,            "file-empty",             "a weights file has no bytes") \
  X(kNotSafetensors,       "not-safetensors",        "a weights file is of another format") \
  X(kBigEndian,            "big-endian",             "the header length is written big-endian") \
  X(kHeaderTooLarge,       "header-too-large",       "safetensors header longer than the limit") \
  X(kHeaderLongerThanFile, "header-longer-than-file","safetensors header longer than its file") \
  X(kHeaderNotJson,        "header-not-json",        "safetensors header is not a JSON object") \
  X(kHeaderNotUtf8,        "header-not-utf8",        "safetensors header is not UTF-8") \
  X(kDuplicateKey,         "duplicate-key",          "a name stands twice in a safetensors header") \
  X(kMetadataNotString,    "metadata-not-string",    "__metadata__ holds something else than strings") \
  X(kBadEntry,             "bad-entry",              "a tensor's header entry lacks a field or has a wrong one") \
  X(kUnknownDtype,         "unknown-dtype",          "a dtype that the format does not have") \
  X(kBadShape,             "bad-shape",              "a shape holds something else than non-negative integers") \
  X(kSizeOverflow,         "size-overflow",          "a size does not fit in 63 bits") \
  X(kSizeMismatch,         "size-mismatch",          "shape times dtype is not the number of bytes") \
  X(kOffsetsReversed,      "offsets-reversed",       "a byte range ends before it begins") \
  X(kOverlap,              "overlap",                "two tensors claim the same bytes") \
  X(kHole,                 "hole",                   "bytes between tensors belong to none") \
  X(kTruncated,            "truncated",              "a file ends before its tensors do") \
  X(kTrailingBytes,        "trailing-bytes",         "bytes follow the last tensor") \
  X(kDuplicateTensorName,  "duplicate-tensor-name",  "a file was asked to hold a name twice") \
  /* checkpoint: directory, index, config */ \
  X(kDirectoryNotFound,    "directory-not-found",    "the checkpoint directory is not there") \
  X(kNoWeights,            "no-weights",             "the directory holds no safetensors weights") \
  X(kIndexMalformed,       "index-malformed",        "model.safetensors.index.json is not as it has to be") \
  X(kPathEscape,           "path-escape",            "the index names a file outside its directory") \
  X(kShardMissing,         "shard-missing",          "the index names a file that is not there") \
  X(kTensorNotInShard,     "tensor-not-in-shard",    "a tensor is not in the file that the index names") \
  X(kTensorNotInIndex,     "tensor-not-in-index",    "a shard holds tensors that the index leaves out") \
  X(kTensorInTwoShards,    "tensor-in-two-shards",   "a tensor is stored in more than one shard") \
  X(kTotalSize,            "total-size",             "total_size of the index is not the sum of its tensors") \
  X(kStaleIndex,           "stale-index",            "an index beside a single weights file is not used") \
  X(kPeftAdapter,          "peft-adapter",           "the directory holds an adapter, not a model") \
  X(kFileChanged,          "file-changed",           "a weights file changed while it was in use") \
  X(kConfigMissing,        "config-missing",         "there is no config.json") \
  X(kConfigMalformed,      "config-malformed",       "config.json is not a JSON object") \
  X(kConfigMissingKey,     "config-missing-key",     "config.json lacks a field that the family needs") \
  X(kConfigValue,          "config-value",           "a field of config.json has a value that cannot be used") \
  /* families, ties */ \
  X(kUnknownArchitecture,  "unknown-architecture",   "the model family is not known") \
  X(kWrapperPrefix,        "wrapper-prefix",         "stored names carry a wrapper's prefix") \
  X(kBaseModelPrefix,      "base-model-prefix",      "stored names lack or add the base model's prefix") \
  X(kMixedPrefixes,        "mixed-prefixes",         "stored names carry prefixes that contradict each other") \
  X(kTieUnknownName,       "tie-unknown-name",       "a declared tie names no parameter") \
  X(kTieCycle,             "tie-cycle",              "declared ties form a cycle") \
  X(kTieShapeMismatch,     "tie-shape-mismatch",     "tied parameters have different shapes") \
  X(kTieConflict,          "tie-conflict",           "names declared tied are stored with different values") \
  X(kTieCopiesEqual,       "tie-copies-equal",       "a tied weight is stored under several names, equally") \
  X(kTieDtypeDiffers,      "tie-dtype-differs",      "copies of a tied weight are stored in different dtypes") \
  X(kTieFromMetadata,      "tie-from-metadata",      "a tie is recorded in file metadata only") \
  X(kTieFlagDefault,       "tie-flag-default",       "config.json has no tie flag; the family's default holds") \
  X(kTieFlagNested,        "tie-flag-nested",        "the tie flag stands in text_config only") \
  X(kTieSourceAmbiguous,   "tie-source-ambiguous",   "three or more tied names are stored with different values") \
  X(kUntied,               "untied",                 "a declared tie is undone because the caller asked for it") \
  X(kTieNotShared,         "tie-not-shared",         "names that should be one tensor are two") \
  /* plan, io */ \
  X(kTiedWeightOnVocab,    "tied-weight-on-vocab",   "a tied weight is asked onto another dimension than its last") \
  X(kUnknownParameter,     "unknown-parameter",      "a name that no parameter has") \
  X(kBadShardDim,          "bad-shard-dim",          "a shard dimension that the parameter does not have") \
  X(kBadRankCount,         "bad-rank-count",         "a number of ranks that cannot be") \
  X(kBadSlice,             "bad-slice",              "a slice lies outside its tensor") \
  X(kMissingParameter,     "missing-parameter",      "a parameter has no value in the checkpoint") \
  X(kShapeMismatch,        "shape-mismatch",         "a stored shape is not the one that the config asks for") \
  X(kDtypeNotLoadable,     "dtype-not-loadable",     "a parameter is stored in a dtype that cannot be trained") \
  X(kUnusedTensor,         "unused-tensor",          "a stored tensor is used by no parameter") \
  X(kKnownBuffer,          "known-buffer",           "a stored tensor is a buffer that the model computes itself") \
  X(kScaleMissing,         "scale-missing",          "quantised values are stored without their scales") \
  X(kScaleBlock,           "scale-block",            "config.json does not say the block of FP8 scales") \
  X(kStrayScale,           "stray-scale",            "a stored scale belongs to nothing that would apply it") \
  X(kInitialised,          "initialised",            "a parameter gets a value that no file holds, as asked") \
  X(kNotFinite,            "not-finite",             "a stored value is NaN or infinite") \
  X(kAllZero,              "all-zero",               "a weight holds nothing but zeros") \
  X(kHostMemory,           "host-memory",            "a load needs more memory than it may take") \
  X(kNotConvertible,       "not-convertible",        "no conversion between two dtypes") \
  /* training checkpoints */ \
  X(kNoCheckpoint,         "no-checkpoint",          "there is no training checkpoint to go on from") \
  X(kManifestMalformed,    "manifest-malformed",     "a training checkpoint's manifest.json is not as it has to be") \
  X(kCheckpointIncomplete, "checkpoint-incomplete",  "a training checkpoint is not what its manifest says") \
  X(kCheckpointMismatch,   "checkpoint-mismatch",    "a training checkpoint is of another model or run") \
  X(kBlockMissing,         "block-missing",          "sharded files do not hold all of a tensor") \
  X(kBlockOverlap,         "block-overlap",          "sharded files hold a part of a tensor twice") \
  X(kSavesMixed,           "saves-mixed",            "sharded files of several saves are in one directory") \
  X(kDirectoryInUse,       "directory-in-use",       "another job writes into this directory") \
  X(kSaveFailed,           "save-failed",            "a checkpoint could not be saved in the background") \
  /* adapters */ \
  X(kAdapterConfig,        "adapter-config",         "an adapter asks for something that is not there") \
  X(kUnknownTarget,        "unknown-target",         "an adapter is asked for modules that the model does not have") \
  X(kTiedTarget,           "tied-target",            "an adapter is asked for one use of a tied weight") \
  /* runtime */ \
  X(kBadEnvironment,       "bad-environment",        "launcher variables are missing or contradict each other") \
  X(kDeviceUnavailable,    "device-unavailable",     "a device is asked for that cannot be used") \
  X(kRendezvousFailed,     "rendezvous-failed",      "the ranks did not find each other") \
  X(kCollectiveFailed,     "collective-failed",      "a collective failed, mostly because a rank is gone") \
  X(kPeerFailed,           "peer-failed",            "another rank failed first") \
  X(kRankDied,             "rank-died",              "a rank ended without a word") \
  X(kStillOnMeta,          "still-on-meta",          "a tensor has no bytes yet") \
  X(kNotSharded,           "not-sharded",            "fully_shard has not been applied") \
  X(kAlreadySharded,       "already-sharded",        "fully_shard has been applied before") \
  X(kUnknownUnit,          "unknown-unit",           "a unit is asked for that the module does not have") \
  X(kUnmanagedParameter,   "unmanaged-parameter",    "a parameter that no fully_shard unit owns") \
  X(kForeignShape,         "foreign-shape",          "a parameter is neither whole nor this rank's shard") \
  X(kOptimizerParameter,   "optimizer-parameter",    "an optimizer holds parameters that it must not step") \
  X(kNonFiniteGradient,    "non-finite-gradient",    "a gradient is infinite or not a number") \
  X(kDataMalformed,        "data-malformed",         "a token file is not as it has to be") \
  X(kDataTooShort,         "data-too-short",         "a token file holds too few tokens") \
  X(kTokenOutOfRange,      "token-out-of-range",     "a token is not in the model's vocabulary") \
  X(kSequenceTooLong,      "sequence-too-long",      "sequences are longer than the model's context") \
  X(kOutputExists,         "output-exists",          "the output directory holds something already") \
  X(kExportMismatch,       "export-mismatch",        "an export does not read back as written") \
  X(kRungFailed,           "rung-failed",            "a model works up to a rung of the ladder, and not on it") \
  X(kKnownFailure,         "known-failure",          "a log shows a failure that is known") \
  X(kUnknownFailure,       "unknown-failure",        "a log shows a failure that is not known, or none") \
  X(kAccelerateConfig,     "accelerate-config",      "accelerate's configuration leads to a failure, or asks for nothing") \
  X(kYamlMalformed,        "yaml-malformed",         "text is not YAML") \
  X(kDemoFailed,           "demo-failed",            "the demo did not reach its goal") \
  /* callers */ \
  X(kBadFlag,              "bad-flag",               "a command line flag has a value that cannot be used") \
  X(kWrongState,           "wrong-state",            "a call made in the wrong phase") \
  X(kOutOfMemory,          "out-of-memory",          "memory could not be allocated") \
  X(kBug,                  "bug",                    "an internal invariant does not hold")
// clang-format on
