// The page of overlayd dev in Chromium: node demo.mjs CHROMIUM FOLDER URL [SCREENSHOT]. It tells what the page shows and
// uses its switches, and nothing else.

import { launch } from './chromium.mjs'
import { serve, version } from './lines.mjs'

const [executablePath, userData, url, screenshot] = process.argv.slice(2)
const browser = await launch(executablePath, userData)
const page = await browser.newPage()
page.on('console', message => console.error(`${message.type()}: ${message.text()}`))
page.on('pageerror', error => console.error(`${error}`))

// What the page was entrusted with and must not show.
const secrets = new Set()
page.on('response', async response => {
  if (!response.url().includes('/lookup/')) return
  const body = await response.json().catch(() => ({})) // a poll that was cut off has none
  for (const secret of [body.session, body.cursor]) if (secret) secrets.add(secret)
})
let loads = 0
page.on('load', () => loads++)

await page.goto(url)
await page.waitForSelector('section.client', { timeout: 15000 })

const commands = {
  async look({ client }) {
    const report = await page.locator(`section[data-client="${client}"]`).evaluate(section => {
      const text = selector => section.querySelector(selector).textContent
      return {
        state: section.dataset.state,
        connected: section.querySelector('[role=switch]').getAttribute('aria-checked') === 'true',
        count: text('.count'),
        through: text('.through'),
        highWater: text('.high-water'),
        recovered: text('.recovered'),
        rows: Object.fromEntries(Array.from(section.querySelectorAll('tbody tr'), tr => [tr.dataset.outpoint, tr.dataset.how])),
        changes: Array.from(section.querySelectorAll('.changes > li'), li => ({
          sequence: li.dataset.sequence,
          how: li.dataset.how,
          told: Array.from(li.querySelectorAll('li'), line => `${line.dataset.kind} ${line.dataset.outpoint}`)
        }))
      }
    })
    const html = await page.content()
    return { report: { ...report, loads, leaks: [...secrets].filter(s => html.includes(s) || page.url().includes(s)).length, secrets: secrets.size } }
  },
  async switch({ client }) {
    await page.locator(`section[data-client="${client}"]`).getByRole('switch').click()
    return {}
  },
  async picture() {
    if (screenshot) await page.screenshot({ path: screenshot, fullPage: true })
    return {}
  }
}

await serve({ chromium: browser.browser()?.version() ?? 'unknown', playwright: await version('playwright-core') },
  async command => await commands[command.op](command))
await browser.close()
process.exit(0)
