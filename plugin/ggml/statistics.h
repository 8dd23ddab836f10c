// Figures of all live buffers: one line for people, JSON for programs; at the end, on SIGUSR1,
// every VARVE_STATS seconds.
#ifndef VARVE_PLUGIN_GGML_STATISTICS_H_
#define VARVE_PLUGIN_GGML_STATISTICS_H_

#include <string>

#include "ggml.h"

namespace varve::plugin {

class KvBuffer;

enum class OpPath { kOnCodes, kOnHostCpu };

/// Counts an operation that ran, for the JSON.
void CountOp(ggml_op op, OpPath path);

void RegisterBuffer(KvBuffer* buffer);

/// Tells a buffer's last figures and forgets it.
void UnregisterBuffer(KvBuffer* buffer);

/// Tells every layer how many its model has. llama.cpp gives layers with a sliding window a buffer
/// of their own, made next to that of the others: open buffers in the order they were made are of
/// one model for as long as no layer is in two of them.
void CountLayersOfModels();

/// A context has been made on the device (it may still keep its KV elsewhere).
void NoteBackendCreated();

/// A KV tensor has been placed in one of our buffers.
void NoteKvSeen();

/// Reads VARVE_STATS and VARVE_STATS_FILE; takes SIGUSR1 if the host has not.
void StartStatistics();

/// {"varve": version, "method": ..., "kernels": ..., "caches": [...], "operations": {...}}
std::string StatisticsJson();

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_STATISTICS_H_
