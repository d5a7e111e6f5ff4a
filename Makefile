# People and CI call the same targets; every install takes its versions from constraints.txt.
PYTHON ?= python3
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

DEV := .venv/bin
SERVE := .venv-serve/bin
ROOMS := host puzzles model train export calibration edge_runtime benchmarks
# Where tests marked gpu are: the others need a browser and more, which a machine with a card may lack.
GPU_TESTS := tests/train tests/export tests/calibration tests/edge_runtime/runtime/engines
SOAK_MINUTES ?= 5
DIST ?= dist
# A test of a server waits as long as it computes, so one worker more than cores keeps them busy.
WORKERS ?= $$(($$(getconf _NPROCESSORS_ONLN) + 1))
# NVIDIA's Python bindings without TensorRT: JetPack 6 has 10.3, JetPack 7.2 has 10.16 or 11.4.
TRT_VERSIONS := 10.3.0 10.7.0 10.13.3.9 10.16.1.11 11.1.0.106 11.4.0.106
TRT_LIBRARIES := nvinfer nvonnxparser nvinfer_plugin
TRT_TESTS := $(addprefix tests/edge_runtime/runtime/engines/test_,tensorrt.py tensorrt_library.py failed_builds.py)
TRT_PROCESSES := tests/edge_runtime/runtime/engines/test_tensorrt_library.py \
	tests/edge_runtime/runtime/engines/test_failed_builds.py::test_cuda_that_does_not_start_is_named_before_a_build_and_passes \
	tests/edge_runtime/server/test_building.py::test_a_second_model_joins_later

.PHONY: help demo browser test test-quick test-slow lint audit format screens peers dist check-gpu check-jetson check-rtx check-trt clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: .venv-serve/ready  ## Set up the server alone, solve a puzzle of each kind and draw the answers
	@$(SERVE)/hrm demo

test: .venv/ready browser  ## Run the test suite (minutes)
	OMP_NUM_THREADS=1 $(DEV)/python -m pytest -m "not slow" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-quick: .venv/ready  ## Run what starts no other process: the inner loop (2 to 3 minutes on two cores)
	OMP_NUM_THREADS=1 $(DEV)/python -m pytest -m "not slow and not process" -n auto -q

test-slow: .venv/ready  ## Run the long tests: ten thousand puzzles of each kind, twenty kills, killed ranks
	$(DEV)/python -m pytest -m slow

lint: .venv/ready  ## Check style and types
	$(DEV)/ruff check .
	$(DEV)/ruff format --check .
	$(DEV)/pyright --pythonpath $(DEV)/python

dist: .venv/ready  ## Build the wheel and the source archive, in dist/
	$(DEV)/uv build --quiet --build-constraints constraints.txt --out-dir $(DIST)

audit: .audit/ready  ## Ask for known vulnerabilities in the pinned versions; says so where nobody can be asked
	PIP_AUDIT=.audit/bin/pip-audit .ci/audit

screens: .venv/ready  ## Make the pictures of the web page again, in a real Chromium
	HRM_SCREENS=docs/screens $(DEV)/python -m pytest tests/edge_runtime/server/web

format: .venv/ready  ## Format the code
	$(DEV)/ruff check --fix .
	$(DEV)/ruff format .

peers: .venv/ready .peers/ready  ## Serve the same model with LitServe and FastAPI beside ours (10 minutes)
	$(DEV)/hrm-bench peers --python .peers/bin/python | tee peers.md

check-gpu: .venv/ready  ## On a CUDA device: training beside the CPU, engines beside PyTorch; writes acceptance-gpu.json
	status=0; \
	$(DEV)/python -m pytest $(GPU_TESTS) -m gpu --junitxml gpu-tests.xml \
		--override-ini addopts="--import-mode=importlib --strict-markers -rA" || status=1; \
	$(DEV)/python -m hrm_parity.acceptance --full --soak-minutes $(SOAK_MINUTES) --out acceptance-gpu.json || status=1; \
	exit $$status

check-jetson:  ## On a Jetson: device, parity of every model, speed, half an hour of soak; writes acceptance.json
	$(PYTHON) -m hrm_parity.acceptance --engine tensorrt --full --soak-minutes 30 --out acceptance.json

check-rtx: .venv/ready .rtx/ready  ## Build every form of a full-size graph with NVIDIA's builder, without a GPU (minutes)
	PYTHONPATH=.rtx $(DEV)/python -m pytest -m rtx --timeout 1400

check-trt: .trt/ready  ## Build and run engines through NVIDIA's Python bindings of six versions, without a GPU (minutes)
	for version in $(TRT_VERSIONS); do echo "TensorRT $$version"; \
		export FAKE_TENSORRT_BINDINGS=$(CURDIR)/.trt/$$version; \
		$(DEV)/python -m pytest -q -m "not process" $(TRT_TESTS) || exit 1; \
		$(DEV)/python -m pytest -q -m process $(TRT_PROCESSES) || exit 1; done

# Browser tests use a Chromium from PATH, or Playwright's own in the user's cache. Without one they are left out.
browser: .venv/ready
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		$(DEV)/python -m playwright install chromium || true

.audit/ready:
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet pip-audit==2.10.1
	touch $@

.rtx/ready: | .venv/ready
	$(DEV)/python -m pip install --quiet --no-deps --target .rtx \
		tensorrt-rtx-cu13-bindings==1.7.1.116 onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0
	touch $@

.trt/ready: $(TRT_VERSIONS:%=.trt/%/ready)
	touch $@

.trt/%/ready: tests/support/fakes/below.c | .venv/ready
	$(DEV)/python -m pip install --quiet --upgrade --no-deps --only-binary=:all: --target $(@D) tensorrt-cu12-bindings==$*
	for name in $(TRT_LIBRARIES); do \
		library=lib$$name.so.$(firstword $(subst ., ,$*)); \
		$(CC) -shared -fPIC -Wl,-soname,$$library $< -o $(@D)/$$library || exit 1; done
	touch $@

.peers/ready: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .peers
	PIP_CONSTRAINT= .peers/bin/python -m pip install --quiet -r benchmarks/peers/requirements.txt
	touch $@

clean:  ## Remove environments and caches
	rm -rf .venv .venv-serve .audit .rtx .trt .peers .pytest_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(DEV)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(DEV)/python -m pip install --quiet --editable '.[train,export,serve,hub,lion]' --group dev
	touch $@

.venv-serve/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-serve
	$(SERVE)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(SERVE)/python -m pip install --quiet --editable '.[serve]'
	touch $@
