// The official client behind a narrow door, the same on Node and in a page: commands in, results out. It adds nothing to
// what the client does: no retry, no timeout, no repair.

export class Clients {
  #sdk
  #devices = new Map()

  constructor(sdk) {
    this.#sdk = sdk
  }

  // run carries out one command and returns what is told about it.
  async run(command) {
    switch (command.op) {
      case 'device':
        this.#devices.set(command.device, this.#device(command.key))
        return {}
      case 'fetch':
        return await this.#fetch(this.#devices.get(command.device), command.call)
      default:
        throw new Error(`no such command: ${command.op}`)
    }
  }

  #device(key) {
    const { AuthFetch, CompletedProtoWallet, PrivateKey } = this.#sdk
    return new AuthFetch(new CompletedProtoWallet(PrivateKey.fromHex(key)))
  }

  async #fetch(device, call) {
    const options = { method: call.method, headers: call.headers ?? {} }
    if (call.body !== '') options.body = call.body
    const response = await device.fetch(call.url, options)
    return {
      answer: {
        status: response.status,
        headers: Object.fromEntries(response.headers),
        body: await response.text()
      }
    }
  }
}
