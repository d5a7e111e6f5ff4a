/* The functions that NVIDIA's bindings look up in TensorRT's libraries; Python sets what they do. */
#include <stddef.h>

void *(*create)(int kind, void *network, void *logger);

void *createInferBuilder_INTERNAL(void *logger) { return create(0, NULL, logger); }
void *createInferRuntime_INTERNAL(void *logger) { return create(1, NULL, logger); }
void *createNvOnnxParser_INTERNAL(void *network, void *logger) { return create(2, network, logger); }
void *createInferRefitter_INTERNAL(void) { return NULL; }
void *createNvOnnxParserRefitter_INTERNAL(void) { return NULL; }
void *getBuilderPluginRegistry(void) { return NULL; }
void *getPluginRegistry(void) { return NULL; }
int getNvOnnxParserVersion(void) { return 0; }
int initLibNvInferPlugins(void) { return 0; }
