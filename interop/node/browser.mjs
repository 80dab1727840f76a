// AuthFetch in pages of Chromium: node browser.mjs CHROMIUM FOLDER PAGE. A command that names a page runs in that one, the
// others in PAGE. Every page puts its Clients on the window once its script has run.

import { launch } from './chromium.mjs'
import { serve, version } from './lines.mjs'

const [executablePath, userData, home] = process.argv.slice(2)
const browser = await launch(executablePath, userData)
const pages = new Map()

function open(url) {
  if (!pages.has(url)) pages.set(url, load(url))
  return pages.get(url)
}

async function load(url) {
  const page = await browser.newPage()
  page.on('console', message => console.error(`${url}: ${message.type()}: ${message.text()}`))
  page.on('pageerror', error => console.error(`${url}: ${error}`))
  await page.goto(url)
  await page.waitForFunction(() => window.clients !== undefined)
  return page
}

await open(home)
await serve(
  { chromium: browser.browser()?.version() ?? 'unknown', sdk: await version('@bsv/sdk'), playwright: await version('playwright-core') },
  async command => {
    const page = await open(command.page || home)
    return await page.evaluate(command => window.clients.run(command), command)
  }
)
await browser.close()
process.exit(0)
