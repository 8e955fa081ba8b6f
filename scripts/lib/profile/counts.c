/* A plugin for QEMU that counts the instructions each block of code executes, for scripts/bench-device --profile.
 *
 * In directory DIR (plugin argument dir=DIR): when the file `start` appears, the plugin sets all counts to zero and removes
 * `start`; when `stop` appears, the plugin writes the counts to `counts`, a line "address instructions" a block of code, and
 * removes `stop`.
 *
 * Built without QEMU's header, which Debian does not package; the declarations are from QEMU's documented plugin interface,
 * version 1 (docs/devel/tcg-plugins.rst).
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t plugin_id;
struct tb;
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct tb *));
extern size_t qemu_plugin_tb_n_insns(const struct tb *);
extern uint64_t qemu_plugin_tb_vaddr(const struct tb *);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct tb *, int operation, void *to, uint64_t value);

#define EXPORTED __attribute__((visibility("default")))
#define ADD_U64 0
#define BUCKETS (1u << 20)

EXPORTED int qemu_plugin_version = 1;

struct block {
	uint64_t address, instructions, runs;
	struct block *next;
};

static struct block *blocks[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char start_path[4096], stop_path[4096], counts_path[4096], part_path[4096];

static void translated(plugin_id id, struct tb *tb)
{
	uint64_t address = qemu_plugin_tb_vaddr(tb), instructions = qemu_plugin_tb_n_insns(tb);
	struct block **bucket = &blocks[(address * UINT64_C(0x9E3779B97F4A7C15)) >> 44], *found;

	(void)id;
	pthread_mutex_lock(&lock);
	for (found = *bucket; found; found = found->next)
		if (found->address == address && found->instructions == instructions)
			break;
	if (!found && (found = calloc(1, sizeof(*found)))) {
		found->address = address;
		found->instructions = instructions;
		found->next = *bucket;
		*bucket = found;
	}
	pthread_mutex_unlock(&lock);
	if (found)
		qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &found->runs, 1);
}

static void write_counts(void)
{
	FILE *file = fopen(part_path, "w");

	if (!file)
		return;
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct block *block = blocks[i]; block; block = block->next)
			if (block->runs)
				fprintf(file, "%" PRIx64 " %" PRIu64 "\n", block->address, block->runs * block->instructions);
	if (fclose(file) == 0)
		rename(part_path, counts_path);
}

static void *watch(void *unused)
{
	for (;; usleep(2000)) {
		if (access(start_path, F_OK) == 0) {
			for (unsigned i = 0; i < BUCKETS; i++)
				for (struct block *block = blocks[i]; block; block = block->next)
					block->runs = 0;
			unlink(start_path);
		}
		if (access(stop_path, F_OK) == 0) {
			write_counts();
			unlink(stop_path);
		}
	}
	return unused;
}

EXPORTED int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	pthread_t thread;
	const char *dir = argc == 1 && strncmp(argv[0], "dir=", 4) == 0 ? argv[0] + 4 : NULL;

	(void)info;
	if (!dir)
		return 1;
	snprintf(start_path, sizeof(start_path), "%s/start", dir);
	snprintf(stop_path, sizeof(stop_path), "%s/stop", dir);
	snprintf(counts_path, sizeof(counts_path), "%s/counts", dir);
	snprintf(part_path, sizeof(part_path), "%s/counts.part", dir);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return pthread_create(&thread, NULL, watch, NULL);
}
