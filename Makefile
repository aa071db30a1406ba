# Everything that a user, a developer or CI runs. `make` alone lists the targets.
#
# The tools live in .venv and nowhere else: Python makes it, pip puts the locked uv into it, uv installs the rest.
# Files named .stamp-* in it remember what was done, so that a second run installs nothing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Both passes of the suite use both cores already.
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
# The certificates that this system trusts, with those of a proxy of its network. pip and uv have lists of their own, which
# they use where a bare system has none.
CERTIFICATES := $(firstword $(wildcard $(SSL_CERT_FILE) /etc/ssl/certs/ca-certificates.crt \
	/etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem))
TRUST := $(if $(CERTIFICATES),UV_SYSTEM_CERTS=$(or $(UV_SYSTEM_CERTS),true) \
	REQUESTS_CA_BUNDLE="$(or $(REQUESTS_CA_BUNDLE),$(CERTIFICATES))")
UV := $(TRUST) UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(BIN)/uv
TOOL_STAMP := $(VENV)/.stamp-uv
RUN_STAMP := $(VENV)/.stamp-run
ENV_STAMP := $(VENV)/.stamp-env

# Compiled modules are kept: the suite starts hundreds of processes, and compiling costs each of them over a second.
unexport PYTHONDONTWRITEBYTECODE

# Servers that the second pass of `make test` uses when they answer.
TEST_POSTGRES_URL ?= postgresql://postgres@127.0.0.1:5432/postgres
TEST_REDIS_URL ?= redis://127.0.0.1:6379/15
export TEST_REDIS_URL
# 1: a server that does not answer, and a test that is skipped for want of one, are failures.
REQUIRE_SERVICES ?=
export REQUIRE_SERVICES

# 1: every test, as `make nightly` runs them. `make test` and `make processes` alone leave out the slowest, most of those
# in a browser, and what each pass leaves to the other: see tests/support/second_pass.py.
ALL ?=
export ALL

# More arguments for pytest: make test PYTEST_ARGS="-k lease -x"
PYTEST_ARGS ?=
# The paths among them. A path that is named is run, even if its directory has a target of its own.
NAMED := $(filter tests/%,$(PYTEST_ARGS))
# Two workers for each of two cores: some tests wait, and each worker spends seconds on collecting them.
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal --ignore=tests/browser $(if $(NAMED),,--ignore=tests/processes)
# Three workers for each of two cores: these tests mostly wait.
PROCESSES := $(BIN)/python -m pytest -n 6 --dist worksteal
# Browsers by themselves: beside everything else they are too slow for what people would see.
# Exit code 5 says that PYTEST_ARGS has chosen none of them.
BROWSERS := $(BIN)/python -m pytest -n 3 --dist worksteal $(if $(NAMED),,tests/browser --ignore=tests/browser/processes)
# Processes that use SQLite whichever database the suite has, or are about a provider.
ONLY_ON_SQLITE := $(addprefix tests/processes/,embedded outage/test_outage.py providers/test_conversations.py) \
	$(addprefix tests/browser/processes/,test_up.py test_demo_flow.py test_client_examples.py)
EVERY_PROCESS := $(if $(NAMED),,tests/processes tests/browser/processes)
# Of the first pass: also commands, deployment, and the six crash points of SQLite; with ALL=1, everything.
FIRST_PROCESSES := $(if $(filter 1,$(ALL))$(NAMED),$(EVERY_PROCESS),\
	$(ONLY_ON_SQLITE) $(addprefix tests/processes/,commands deployment crash/test_kill.py))
# What the second pass leaves out: these, tests about file formats, and what tests/support/second_pass.py names.
ONCE := $(addprefix --ignore=,$(ONLY_ON_SQLITE) tests/test_documented_examples.py tests/runs/external/importers)
PACKAGES := agentops timeline runs
TEMPLATES = $(shell git ls-files 'templates/*.html')

.PHONY: help
help:
	@echo 'make up      the whole site on 127.0.0.1, until Ctrl-C; PORT (8000) and AGENTOPS_HOME (.agentops) are honoured'
	@echo 'make watch   sessions of Claude Code, Codex CLI and Gemini CLI on this machine, live in that site, until Ctrl-C'
	@echo 'make install   what the site needs, and your own requirements.local, into .venv; make up begins with it'
	@echo 'make env     set up .venv with everything locked in requirements-dev.lock'
	@echo 'make test    the suite: on SQLite, then on PostgreSQL and Redis if they answer, and in a browser'
	@echo 'make nightly   every test, benchmark and schedule of crashes, with all services required: about an hour'
	@echo 'make lone-clone   collect the whole suite, and run a part of it, in a clone with nothing beside it'
	@echo 'make screenshots   a picture of every page and state, in screenshots/'
	@echo 'make components   a site whose page /components shows every part of its pages'
	@echo 'make pictures   the pictures of README.md and docs/, from a new site with the demo'
	@echo 'make processes   whole programs: workers that are killed, sites that are stopped and upgraded, commands'
	@echo 'make scale   hundreds of stream clients, on PostgreSQL and Redis'
	@echo 'make chaos   workers killed at every crash point, random faults by seed, and proof that the rig sees what is broken'
	@echo 'make chaos-long   SEEDS=200 random schedules, from FIRST=1 on; make chaos SEED=17 plays one again'
	@echo 'make chaos-check   a part of it, as in the gate; chaos-points and chaos-steps: every hit, every step'
	@echo 'make chaos-programs   remote runs of RUNS=50 for each kind of program, whose processes are killed; PROGRAM=plain SEED=7'
	@echo 'make chaos-flows   a flow with a loop, a forEach and a question under killed workers, 50 in one of them'
	@echo 'make chaos-ingest   100 posters to one run for a minute, while web processes and PostgreSQL are killed (STORM_ARGS)'
	@echo 'make consumers   schemathesis over the OpenAPI document, with a key of each scope, LONGER=5 times as long as make nightly'
	@echo 'make newest   the newest versions of 20 client programs, compared with the ledger of a model server; needs a network'
	@echo 'make compare   one task under agentops, DBOS, Temporal, Restate, Prefect and LangGraph, killed; needs a network'
	@echo 'make fuzz    the JSON parser, events of runners, OTLP bodies and files of other programs, for SECONDS=60'
	@echo 'make bench-check   the benchmarks in small, as tests'
	@echo 'make check   style, types, imports, migrations, deployment settings, documentation'
	@echo 'make docs    build the documentation as a site, in site/'
	@echo 'make reference   write docs/reference again, from the code'
	@echo 'make bench   the measurements'
	@echo 'make wheels  build the wheels of the site and of the client, in dist/'
	@echo 'make lock    write the lock files again (LOCK_ARGS=--upgrade for newer versions)'
	@echo 'make digests   look up the current digests of the images in docker-compose.yml and Dockerfile'
	@echo 'make clean   remove .venv, caches and build results; data in .agentops stays'

# --- Environment ------------------------------------------------------------------------------------------------

# The first interpreter on the PATH that runs and is new enough; some names may exist and still not run.
define FIND_PYTHON
for candidate in $${PYTHON:-} python3 python3.11 python3.12 python3.13; do \
	if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		python="$$candidate"; break; \
	fi; \
done; \
if [ -z "$${python:-}" ]; then \
	echo 'agentops needs Python 3.11 or newer; none of python3, python3.11, python3.12, python3.13 is.' >&2; \
	echo 'Install one, or name it: make PYTHON=/path/to/python3.11' >&2; \
	exit 1; \
fi
endef

ifdef PYTHON
export PYTHON
endif

$(BIN)/python:
	@$(FIND_PYTHON); \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo 'python -m venv failed; Debian keeps it in a package of its own: apt-get install python3-venv' >&2; \
		exit 1; \
	}

# The lock file pins uv with its hashes; pip installs exactly that.
$(TOOL_STAMP): requirements-dev.lock | $(BIN)/python
	@sed -n '/^uv==/,/^    # via/p' requirements-dev.lock > $(VENV)/uv.txt
	$(TRUST) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(VENV)/uv.txt
	@touch $@

# Packages of the user's own: see docs/guides/extensions.md. The copy says what is installed of it.
LOCAL := requirements.local
LOCAL_COPY := $(VENV)/requirements.local
# Also if it was removed, or put back with an older time.
LOCAL_CHANGED := $(wildcard $(LOCAL)) \
	$(shell if [ -e $(LOCAL) ] || [ -e $(LOCAL_COPY) ]; then cmp -s $(LOCAL) $(LOCAL_COPY) || echo FORCE; fi)
.PHONY: FORCE
FORCE:

# Of what uv prints: packages that were removed, and not for another version. This package is installed again.
REMOVED := $$1 == "-" { split($$2, part, "=="); gone[part[1]] = $$2 } $$1 == "+" { split($$2, part, "=="); delete gone[part[1]] } \
	END { delete gone["agentops"]; for (name in gone) print "Removed " gone[name] ": to keep it, add it to $(LOCAL)" }

# $(call INSTALL,LOCK,SYNC_OPTIONS,INSTALL_OPTIONS): exactly what the lock file and requirements.local name, and this
# package. The versions of requirements.local are chosen first, and uv has everything before it changes the environment:
# where something cannot be installed, the environment stays unchanged. What the lock file names is checked by its hashes.
define INSTALL
	refuse() { \
		echo '$(LOCAL) cannot be installed beside $(1), for the reason above. Nothing was changed.' >&2; \
		echo 'Correct it and repeat the command, or move it away to start without its packages.' >&2; \
		exit 1; \
	}; \
	sync_packages() { \
		$(UV) pip sync "$$@" 2> $(VENV)/sync.log || { cat $(VENV)/sync.log >&2; return 1; }; \
		awk '$(REMOVED)' $(VENV)/sync.log >&2; \
	}; \
	if [ -e $(LOCAL) ]; then \
		echo '--editable .' > $(VENV)/this-package.txt; \
		$(UV) pip compile --quiet --no-header --no-annotate --constraint $(1) --build-constraint requirements-dev.lock \
			--output-file $(VENV)/local.lock $(LOCAL) $(VENV)/this-package.txt > /dev/null || refuse; \
		{ grep -vxF -f <(grep -oE '^[a-z0-9._-]+==[^ ;]+' $(1)) $(VENV)/local.lock || true; } > $(VENV)/local.txt; \
		sync_packages $(2) $(1) $(VENV)/local.txt || refuse; \
		cp $(LOCAL) $(LOCAL_COPY); \
	else \
		sync_packages --require-hashes $(2) $(1); \
		$(UV) pip install --quiet --no-deps $(3) --editable .; \
		rm -f $(LOCAL_COPY) $(VENV)/local.lock $(VENV)/local.txt; \
	fi
endef

# What the site needs to run, and nothing more. The package is built in an environment of its own, whose tools have
# their hashes checked too.
$(RUN_STAMP): requirements.lock pyproject.toml $(LOCAL_CHANGED) | $(TOOL_STAMP)
	@echo 'Installing what agentops needs, once'
	@$(call INSTALL,requirements.lock,,--build-constraint requirements-dev.lock)
	@touch $@

# The wheel of claude-agent-sdk brings a program of 370 MB that no test runs; its source does not.
$(ENV_STAMP): requirements-dev.lock pyproject.toml $(LOCAL_CHANGED) | $(TOOL_STAMP)
	@echo 'Installing everything in requirements-dev.lock'
	@$(call INSTALL,requirements-dev.lock,--no-binary claude-agent-sdk --build-constraint requirements-dev.lock,--no-build-isolation)
	@touch $@

.PHONY: env
env: $(ENV_STAMP)

# A developer's environment holds all that the site needs: it is brought up to date instead, and loses nothing.
.PHONY: install
install: $(or $(wildcard $(ENV_STAMP)),$(RUN_STAMP))

.PHONY: up
up: install
	@exec $(BIN)/agentops up

.PHONY: watch
watch: install
	@exec $(BIN)/agentops watch

# Needs uv only, so that a lock file that cannot be installed can be written again.
COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command 'make lock' $(LOCK_ARGS) pyproject.toml
.PHONY: lock
lock: $(TOOL_STAMP)
	$(COMPILE) --output-file requirements.lock
	$(COMPILE) --group dev --constraint requirements.lock --output-file requirements-dev.lock

# The site, and the client, which programs install without the site.
.PHONY: wheels
wheels: $(ENV_STAMP)
	$(UV) build --quiet --wheel --no-build-isolation --out-dir dist .
	$(UV) build --quiet --wheel --no-build-isolation --out-dir dist agentops
	@ls dist/*.whl

# The current digests of the images that are named by tag and digest, as Docker's registry has them.
IMAGE := [a-z]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}
.PHONY: digests
digests:
	@for image in $$(grep -ohE '$(IMAGE)' docker-compose.yml Dockerfile | sort -u); do \
		tag="$${image%@*}"; \
		digest="$$(docker buildx imagetools inspect "$$tag" --format '{{.Manifest.Digest}}')"; \
		[[ "$$digest" =~ ^sha256:[0-9a-f]{64}$$ ]] || { echo "no digest of $$tag: $$digest" >&2; exit 1; }; \
		sed -i "s|$$image|$$tag@$$digest|" docker-compose.yml Dockerfile; \
		echo "$$tag@$$digest"; \
	done

# --- Tests ------------------------------------------------------------------------------------------------------

# Exit 0 if the server at the URL lets us in.
POSTGRES_ANSWERS = $(BIN)/python -c \
	'import sys, psycopg; psycopg.connect(sys.argv[1], connect_timeout=3).close()' '$(TEST_POSTGRES_URL)'
REDIS_ANSWERS = $(BIN)/python -c \
	'import sys, redis; redis.Redis.from_url(sys.argv[1], socket_connect_timeout=3).ping()' '$(TEST_REDIS_URL)'

# What has a target of its own is left out.
NOT_SLOW := $(if $(filter 1,$(ALL))$(NAMED),, and not slow)
EVERYDAY := not scale and not browser and not bench and not chaos$(NOT_SLOW)
WHOLE_PROGRAMS := not scale and not bench and not chaos$(NOT_SLOW)
IN_A_BROWSER := browser$(if $(filter 1,$(ALL))$(NAMED),, and smoke)
ON_SQLITE := env -u DATABASE_URL -u REDIS_URL
# The same, as the first of two passes if there is a second: see tests/support/second_pass.py.
FIRST_PASS = $(ON_SQLITE) $(if $(NAMED),,TEST_PASS=$$($(POSTGRES_ANSWERS) >/dev/null 2>&1 && echo sqlite))

# $(call ENTER_SERVICES,NAME): put the addresses of the servers into the environment of the commands that follow. Without
# PostgreSQL there are none: the recipe ends. With REQUIRE_SERVICES=1, a server that does not answer is an error.
define ENTER_SERVICES
	skipped=''; redis='$(TEST_REDIS_URL)'; \
	if ! $(REDIS_ANSWERS) >/dev/null 2>&1; then \
		echo '== SKIPPED: what needs Redis: no answer at TEST_REDIS_URL =='; skipped=redis; redis=''; \
	fi; \
	if ! $(POSTGRES_ANSWERS) >/dev/null 2>&1; then \
		echo '== SKIPPED: $(1) on PostgreSQL: no answer at TEST_POSTGRES_URL =='; skipped=postgres; \
	fi; \
	if [ -n "$$skipped" ] && [ "$(REQUIRE_SERVICES)" = 1 ]; then \
		echo 'REQUIRE_SERVICES=1 forbids skipping.' >&2; exit 1; \
	fi; \
	if [ "$$skipped" = postgres ]; then exit 0; fi; \
	echo "== $(1) on PostgreSQL $${redis:+and Redis }=="; \
	export $(if $(NAMED),,TEST_PASS=postgres) DATABASE_URL='$(TEST_POSTGRES_URL)' REDIS_URL="$$redis"
endef

.PHONY: test
test: test-sqlite test-services

.PHONY: test-sqlite
test-sqlite: $(ENV_STAMP)
	@echo '== Suite on SQLite =='
	$(FIRST_PASS) $(PYTEST) -m '$(EVERYDAY)' $(PYTEST_ARGS)
	@# Where PostgreSQL answers, the second pass does this.
	$(POSTGRES_ANSWERS) >/dev/null 2>&1 || $(ON_SQLITE) $(BROWSERS) -m '$(IN_A_BROWSER)' $(PYTEST_ARGS) || [ $$? = 5 ]

.PHONY: test-services
test-services: $(ENV_STAMP)
	@$(call ENTER_SERVICES,Suite); \
	$(PYTEST) $(ONCE) -m '$(EVERYDAY)' $(PYTEST_ARGS); \
	$(BROWSERS) -m '$(IN_A_BROWSER)' $(PYTEST_ARGS) || [ $$? = 5 ]

# A picture of every page and state in screenshots/: light, dark, 320 and 1920 pixels wide.
.PHONY: screenshots
screenshots: $(ENV_STAMP)
	SCREENSHOTS=screenshots $(ON_SQLITE) $(BIN)/python -m pytest -q -n 2 -m browser tests/browser/test_every_page.py

# A site with the page /components, which is no part of the product.
.PHONY: components
components: $(ENV_STAMP)
	AGENTOPS_HOME=$(VENV)/components TEST_COMPONENTS=1 DJANGO_SETTINGS_MODULE=tests.support.process_settings \
		$(BIN)/python manage.py up

# The pictures of README.md and docs/: a run, the start page and a waterfall of the demo. Takes about two minutes.
.PHONY: pictures
pictures: $(ENV_STAMP)
	$(ON_SQLITE) $(BIN)/python -m tests.support.programs.documented_pictures

# Whole programs: workers that are killed, sites that are started, stopped and upgraded, commands.
.PHONY: processes
processes: $(ENV_STAMP)
	@echo '== Processes on SQLite =='
	$(FIRST_PASS) $(PROCESSES) -m '$(WHOLE_PROGRAMS)' $(FIRST_PROCESSES) $(PYTEST_ARGS)
	@$(call ENTER_SERVICES,Processes); \
	$(PROCESSES) $(ONCE) -m '$(WHOLE_PROGRAMS)' $(EVERY_PROCESS) $(PYTEST_ARGS)

# What nobody waits for at a change: everything, run before a release and each night.
.PHONY: nightly
nightly: export REQUIRE_SERVICES = 1
nightly: export ALL = 1
nightly: $(ENV_STAMP)
	$(MAKE) test processes bench-check scale fuzz chaos

# A clone with no directory beside it: every module is collected, and what needs recordings finds them in the clone.
LONE_CLONE := $(VENV)/lone-clone/agentops
.PHONY: lone-clone
lone-clone: $(ENV_STAMP)
	rm -rf $(dir $(LONE_CLONE)) && git clone --quiet --shared . $(LONE_CLONE)
	$(MAKE) --directory $(LONE_CLONE) env
	cd $(LONE_CLONE) && $(ON_SQLITE) $(BIN)/python -m pytest -q -k '$(LONE_PART)' tests
	rm -rf $(dir $(LONE_CLONE))
LONE_PART := test_log or test_watching or test_hooks or test_session_posts or test_codex or test_claude_code_sessions

# Hundreds of clients, and thousands of runs; it has both cores for itself.
.PHONY: scale
scale: $(ENV_STAMP)
	DATABASE_URL='$(TEST_POSTGRES_URL)' REDIS_URL='$(TEST_REDIS_URL)' \
		$(BIN)/python -m pytest -m scale -s -o faulthandler_timeout=1200 tests/scale $(PYTEST_ARGS)

# Schedules of crashes, in processes of their own: a PostgreSQL server that is made for them, brokers, workers. Each
# failure is told with the command that plays it again.
CHAOS := $(BIN)/python -m tests.chaos
SEEDS ?=
FIRST ?= 1
SEED ?=
# More arguments: CHAOS_ARGS="--engine sqlite --jobs 2 --logs /tmp/chaos"
CHAOS_ARGS ?=

# All of them on PostgreSQL, and six crash points on SQLite, within ten minutes.
.PHONY: chaos
chaos: $(ENV_STAMP)
	$(CHAOS) all --first $(FIRST) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

# Four workers for two cores: a schedule mostly waits for leases to lapse.
.PHONY: chaos-check
chaos-check: $(ENV_STAMP)
	DATABASE_URL='$(TEST_POSTGRES_URL)' REDIS_URL='$(TEST_REDIS_URL)' \
		$(BIN)/python -m pytest -n 4 --dist worksteal -m chaos tests/chaos $(PYTEST_ARGS)
	$(CHAOS) check --first $(FIRST) $(CHAOS_ARGS)

# Flows whose workers are killed at random points: on each database one long flow that 50 of them die under, and
# FLOW_SEEDS short ones.
.PHONY: chaos-flows
FLOWS = $(BIN)/python -m pytest -n 2 -rP -o faulthandler_timeout=1200 \
	tests/processes/crash/test_killed_flows.py tests/processes/crash/test_flow_sabotage.py
chaos-flows: $(ENV_STAMP)
	FLOW_SEEDS=$(or $(SEEDS),12) $(ON_SQLITE) $(FLOWS)
	FLOW_SEEDS=$(or $(SEEDS),12) DATABASE_URL='$(TEST_POSTGRES_URL)' REDIS_URL='$(TEST_REDIS_URL)' $(FLOWS)

# Programs that serve remote runs, killed at random moments of model calls, tools and waits, on both databases. The site is
# restarted in between. A part of `make chaos`.
.PHONY: chaos-programs
chaos-programs: $(ENV_STAMP)
	$(CHAOS) programs --first $(FIRST) --runs $(or $(RUNS),50) $(if $(PROGRAM),--program $(PROGRAM)) \
		$(if $(SEED),--seed $(SEED)) $(CHAOS_ARGS)

.PHONY: chaos-long
chaos-long: $(ENV_STAMP)
	$(CHAOS) long --first $(FIRST) --seeds $(or $(SEEDS),200) $(CHAOS_ARGS)

# Every crash point at its first, second and last hit, by every action; and every step of a run of twelve.
.PHONY: chaos-points chaos-steps
chaos-points chaos-steps: $(ENV_STAMP)
	$(CHAOS) $(@:chaos-%=%) $(CHAOS_ARGS)

# Posters to one run, web processes and a PostgreSQL server of their own that are killed, and another project that
# measures how long it waits: make chaos-ingest STORM_ARGS='--engine sqlite --posters 20 --seconds 20 --within 2'
.PHONY: chaos-ingest
chaos-ingest: $(ENV_STAMP)
	$(BIN)/python -m tests.support.ingest_storm $(STORM_ARGS)

# At most five times 110 seconds on each database.
LONGER ?= 5
.PHONY: consumers
consumers: $(ENV_STAMP)
	CONSUMERS_LONGER=$(LONGER) $(ON_SQLITE) $(BIN)/python -m pytest -n 2 tests/processes/api/test_consumer.py $(PYTEST_ARGS)
	@$(call ENTER_SERVICES,Consumers); \
	CONSUMERS_LONGER=$(LONGER) $(BIN)/python -m pytest -n 2 tests/processes/api/test_consumer.py $(PYTEST_ARGS)

# The newest versions of the programs that send runs to a site or read them, compared with what a scripted model server
# has served. It needs package registries, so it is no part of the gate: make newest NEWEST_ARGS='--write'
NEWEST_ARGS ?=
.PHONY: newest
newest: $(ENV_STAMP)
	$(BIN)/python -m tests.newest --directory $(abspath $(VENV))/newest $(NEWEST_ARGS)

# One task under agentops and other systems, whose process is killed in a tool. It needs package registries and
# PostgreSQL, so it is no part of the gate: make compare COMPARE_ARGS='--write'
COMPARE_ARGS ?=
.PHONY: compare
compare: $(ENV_STAMP)
	$(BIN)/python -m bench.compare $(COMPARE_ARGS)

# What reads foreign input, fed with changed recordings: make fuzz SECONDS=600 FUZZ_ARGS='file'
SECONDS ?= 60
.PHONY: fuzz
fuzz: $(ENV_STAMP)
	$(BIN)/python -m tests.support.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)

# The benchmarks themselves, in small: that they run through, and that what they compare is the same.
.PHONY: bench-check
bench-check: $(ENV_STAMP)
	DATABASE_URL='$(TEST_POSTGRES_URL)' REDIS_URL='$(TEST_REDIS_URL)' \
		$(BIN)/python -m pytest -n 2 -m bench tests/test_bench.py $(PYTEST_ARGS)

.PHONY: bench
bench: $(ENV_STAMP)
	$(BIN)/python -m bench $(BENCH_ARGS)

# --- Checks -----------------------------------------------------------------------------------------------------

# Settings as in production; nothing connects to these servers, whose names cannot exist.
PRODUCTION := env AGENTOPS_HOME=$(VENV)/check AGENTOPS_HTTPS=true FORWARDED_ALLOW_IPS=192.0.2.1 \
	ALLOWED_HOSTS=agentops.example \
	DATABASE_URL=postgresql://agentops@db.invalid/agentops REDIS_URL=redis://:password@redis.invalid/0

.PHONY: check
check: $(ENV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/djade --check --target-version 5.2 $(TEMPLATES)
	$(BIN)/lint-imports --no-cache --no-logo
	AGENTOPS_HOME=$(VENV)/check $(BIN)/mypy $(PACKAGES) manage.py
	env -u DATABASE_URL -u REDIS_URL AGENTOPS_HOME=$(VENV)/check \
		$(BIN)/python manage.py makemigrations --check --dry-run
	@key="$$($(BIN)/python -c 'import secrets; print(secrets.token_urlsafe(64))')"; \
	echo 'manage.py check --deploy, with settings as in production'; \
	SECRET_KEY="$$key" $(PRODUCTION) $(BIN)/python -W error manage.py check --deploy --fail-level WARNING
	$(BIN)/python -m pytest -q tests/test_code_rules.py tests/test_static_rules.py tests/test_single_writers.py
	$(REFERENCE) --check
	$(BUILD_DOCS)

# --- Documentation ----------------------------------------------------------------------------------------------

# Nothing is fetched; --strict fails for a link to a page or heading that does not exist.
BUILD_DOCS = $(BIN)/zensical build --strict --clean

.PHONY: docs
docs: $(ENV_STAMP)
	$(BUILD_DOCS)

# Help texts name the defaults of these two, which are settings.
REFERENCE = env -u PORT -u AGENTOPS_CONCURRENCY AGENTOPS_HOME=$(VENV)/check $(BIN)/python manage.py write_reference

.PHONY: reference
reference: $(ENV_STAMP)
	$(REFERENCE)

.PHONY: clean
clean:
	rm -rf $(VENV) dist build site .cache staticfiles .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(PACKAGES) tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
