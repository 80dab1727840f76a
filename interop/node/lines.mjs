// Commands come as lines of JSON on standard input, results leave as lines on standard output, in the order in which they
// are ready. Commands run side by side. The end of the input is the end of the process.

import { createInterface } from 'node:readline'

export function tell(line) {
  process.stdout.write(JSON.stringify(line) + '\n')
}

// serve says that it is ready, and in which versions, and carries out every command with run until the input ends.
export async function serve(versions, run) {
  tell({ ready: true, versions })
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    run(command).then(
      result => tell({ id: command.id, ...result }),
      error => tell({ id: command.id, error: String(error?.message ?? error) })
    )
  }
}

// version is that of an installed package.
export async function version(name) {
  const { readFile } = await import('node:fs/promises')
  const text = await readFile(new URL(`./node_modules/${name}/package.json`, import.meta.url), 'utf8')
  return JSON.parse(text).version
}
