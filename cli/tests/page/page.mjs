// The chat page in headless Chromium, by keyboard:  page.mjs URL FOLDER_OF_NODE_MODULES CHROMIUM [--page FILE] [--screenshots FOLDER]
import assert from "node:assert";
import fs from "node:fs";
import { createRequire } from "node:module";

const [url, folder, chromium, ...rest] = process.argv.slice(2);
const option = name => rest[rest.indexOf(name) + 1 || rest.length];
const puppeteer = createRequire(`${folder}/`)("puppeteer-core");
const host = new URL(url).host;
const TIMEOUT = 60_000;
// Its answer takes long enough to be stopped.
const LONG = "Write a long story about a ship and its crew.";
const DESKTOP = { width: 1200, height: 750 };
const PHONE = { width: 390, height: 780, deviceScaleFactor: 2, isMobile: true, hasTouch: true };

const browser = await puppeteer.launch({
    executablePath: chromium,
    // Over a pipe, at whose end Chromium ends too.
    pipe: true,
    protocolTimeout: 2 * TIMEOUT,
    timeout: TIMEOUT,
    env: { ...process.env, LD_LIBRARY_PATH: process.env.CHROMIUM_LIBRARIES },
    // No other host has an address, whoever asks.
    args: ["--no-sandbox", `--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE ${new URL(url).hostname}`],
});
// What was asked for, and what went wrong.
const asked = [], wrong = [];
let question = "";
const measures = fs.readFileSync(new URL("measures.js", import.meta.url), "utf8");

// A tab in which nothing is open yet.
async function newTab() {
    const page = await browser.newPage();
    page.setDefaultTimeout(TIMEOUT);
    await page.evaluateOnNewDocument(measures);
    page.on("request", r => asked.push({ url: r.url(), body: r.postData() }));
    page.on("requestfailed", r => r.failure()?.errorText === "net::ERR_ABORTED" || wrong.push(`${r.url()}: ${r.failure()?.errorText}`));
    page.on("console", m => ["error", "warn"].includes(m.type()) && wrong.push(`console: ${m.text()}`));
    page.on("pageerror", e => wrong.push(`script: ${e.message}`));
    page.on("dialog", d => {
        question = d.message();
        d.accept();
    });
    if (option("--page")) await replace(page, option("--page"));
    return page;
}

// Shows a page that is not built yet, under the policy of the one that is.
async function replace(page, file) {
    const policy = (await fetch(url)).headers.get("content-security-policy");
    const text = fs.readFileSync(file, "utf8").replaceAll("NONCE", policy.match(/nonce-(\w+)/)[1]);
    const session = await page.createCDPSession();
    await session.send("Fetch.enable", { patterns: [{ urlPattern: `${url}/`, resourceType: "Document" }] });
    const responseHeaders = [
        { name: "Content-Type", value: "text/html; charset=utf-8" },
        { name: "Content-Security-Policy", value: policy },
    ];
    session.on("Fetch.requestPaused", ({ requestId }) => {
        session.send("Fetch.fulfillRequest", { requestId, responseCode: 200, responseHeaders, body: Buffer.from(text).toString("base64") });
    });
}

const page = await newTab();
const none = (list, what) => assert.ok(list.length === 0, `${what}: ${JSON.stringify(list)}`);
const key = async (...names) => {
    for (const name of names) await page.keyboard.press(name);
};
// The name of what has the focus.
const focused = () => page.evaluate(() => {
    const e = document.activeElement;
    return e === document.body ? "" : e.ariaLabel || e.labels?.[0]?.firstChild.textContent.trim() || e.textContent.trim() || e.id;
});
// Goes there by Tab, or back by Shift and Tab.
async function tab(name, back = false) {
    const seen = [];
    for (let i = 0; i < 30; i++) {
        if (back) await page.keyboard.down("Shift");
        await key("Tab");
        if (back) await page.keyboard.up("Shift");
        seen.push(await focused());
        if (seen.at(-1) === name) return;
    }
    assert.fail(`Tab does not lead to ${name}, but to ${seen.join(" | ")}`);
}
const text = selector => page.$$eval(selector, all => all.at(-1)?.textContent ?? "");
const answer = () => text("article.assistant .text");
const note = () => text("article.assistant .note span");
const sent = () => JSON.parse(asked.findLast(r => r.url.endsWith("/v1/chat/completions")).body);
const until = (what, f, ...more) => page.waitForFunction(f, { polling: 50 }, ...more).catch(e => assert.fail(`${what}: ${e.message}`));
const idle = () => until("the answer does not end", () => document.getElementById("send").textContent === "Send");
// Types a message and sends it; the answer has begun then.
async function ask(message) {
    const before = await page.$$eval("article", all => all.length);
    if ((await focused()) !== "Message") await tab("Message");
    await page.keyboard.type(message);
    await key("Enter");
    const begun = n => document.querySelectorAll("article").length === n + 2 && document.querySelector("article:last-of-type .text").textContent;
    await until("no answer", begun, before);
}
// How many answers the server writes.
async function running() {
    const metrics = await (await fetch(`${url}/metrics`)).text();
    return Number(metrics.match(/^tl_num_requests_running\S* (\d+)/m)[1]);
}
async function stopped(what) {
    await idle();
    const now = await answer();
    assert.match(await note(), /stopped$/, `${what} does not end the answer`);
    for (const end = Date.now() + 10_000; (await running()) > 0; ) assert.ok(Date.now() < end, `${what}: the server goes on writing`);
    assert.equal(await answer(), now, `${what}: the answer goes on`);
}
const show = (scheme, viewport) => page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]).then(() => page.setViewport(viewport));
async function fill(label, value) {
    await tab(label);
    await page.keyboard.down("Control");
    await key("a");
    await page.keyboard.up("Control");
    await key("Backspace");
    await page.keyboard.type(value);
}
async function legible(what) {
    const found = await page.evaluate(() => measures.contrasts());
    assert.ok(found.length > 5, `${what}: only ${found.length} texts`);
    none(found.filter(t => t.ratio < 4.5), `${what}: texts below a contrast of 4.5`);
    return Math.min(...found.map(t => t.ratio));
}
const screenshot = async name => option("--screenshots") && page.screenshot({ path: `${option("--screenshots")}/${name}.png` });

const steps = {
    async "opens, and Tab visits everything in order"() {
        await show("light", DESKTOP);
        await page.goto(url);
        await until("no model's name", () => document.getElementById("model").textContent === "smollm2-135m-instruct");
        assert.equal(await focused(), "Message");
        const order = ["Send"];
        await tab("Send");
        for (let i = 0; i < 4; i++) {
            await tab(["New conversation", "Delete all", "Settings", "Message"][i]);
            order.push(await focused());
        }
        assert.deepEqual(order, ["Send", "New conversation", "Delete all", "Settings", "Message"]);
    },
    async "a message is sent and the answer streams, with its speed"() {
        await ask(LONG);
        const lengths = new Set(), end = Date.now() + TIMEOUT;
        while (lengths.size < 4 && Date.now() < end && (await text("#send")) === "Stop") lengths.add((await answer()).length);
        assert.ok(lengths.size >= 3, `the answer's lengths were ${[...lengths]}`);
        assert.match(await note(), /^\d+ tokens · \d+\.\d tokens\/s/);
        await key("Escape");
        await stopped("Escape");
    },
    async "settings are sent"() {
        await tab("Settings", true);
        await key("Enter");
        await fill("System prompt", "You are a helpful assistant. Answer briefly.");
        await fill("Temperature, 0 to 2", "0");
        await fill("Top-p, 0 to 1", "0.9");
        await fill("Tokens of an answer at most", "64");
        await fill("Seed, empty for a new one each time", "7");
        await key("Enter");
        await until("the dialog does not close", () => !document.getElementById("dialog").open);
        assert.equal(await focused(), "Settings");
        await tab("New conversation");
        await key("Enter");
        await ask("Why is the sky blue?");
        const { messages, ...other } = sent();
        const usage = { include_usage: true };
        assert.deepEqual(other, { stream: true, stream_options: usage, temperature: 0, top_p: 0.9, max_tokens: 64, seed: 7 });
        assert.deepEqual(messages, [
            { role: "system", content: "You are a helpful assistant. Answer briefly." },
            { role: "user", content: "Why is the sky blue?" },
        ]);
        await idle();
        const tokens = Number((await note()).match(/^(\d+) tokens · \d+\.\d tokens\/s/)[1]);
        assert.ok(tokens > 0 && tokens <= 64, `${tokens} tokens`);
    },
    async "the stop button ends an answer"() {
        await tab("Settings", true);
        await key("Enter");
        await fill("Tokens of an answer at most", "1000");
        await key("Enter");
        const before = await answer();
        await ask(LONG);
        assert.deepEqual(sent().messages.map(m => m.role), ["system", "user", "assistant", "user"]);
        assert.equal(sent().messages[2].content, before);
        await tab("Stop");
        await key("Enter");
        await stopped("Stop");
    },
    async "history outlives a reload"() {
        const shown = await page.$$eval("article .text", all => all.map(e => e.textContent));
        await page.reload();
        const again = () => page.$$eval("article .text", all => all.map(e => e.textContent));
        assert.deepEqual(await again(), shown);
        await until("no conversations", () => document.querySelectorAll("#list li").length === 2);
        // The earlier one is opened, then this one again.
        await tab("New conversation");
        await key("Tab", "Tab", "Tab", "Enter");
        assert.equal((await again()).length, 2);
        await tab("New conversation");
        await key("Tab", "Enter");
        assert.deepEqual(await again(), shown);
        await tab("Settings", true);
        await key("Enter");
        assert.equal(await page.$eval("#temperature", e => e.value), "0");
        await key("Escape");
        // A question outlives it too, whose answer has not ended.
        await tab("New conversation");
        await key("Enter");
        await ask(LONG);
        await page.reload();
        assert.deepEqual(await again(), [LONG]);
        await tab(`Delete ${LONG}`);
        await key("Enter");
        await tab("Why is the sky blue?", true);
        await key("Enter");
        assert.deepEqual(await again(), shown);
    },
    async "tabs keep each other's history"() {
        const other = await newTab();
        await other.goto(url);
        await other.waitForSelector("#list li");
        assert.deepEqual(await other.$$eval("#list li, article", all => all.map(e => e.tagName)), ["LI", "LI"]);
        await other.type("#input", "Hello\n");
        await other.waitForFunction(() => document.querySelector("#list li button").textContent === "Hello");
        await other.close();
        await page.bringToFront();
        await until("the other tab's conversation is missing", () => document.querySelectorAll("#list li").length === 3);
        await tab("Delete Hello");
        await key("Enter");
        assert.equal(await page.evaluate(() => JSON.parse(localStorage.getItem("tl.talks")).length), 2);
    },
    async "focus is seen at every stop"() {
        for (const scheme of ["light", "dark"]) {
            await show(scheme, DESKTOP);
            const seen = new Set();
            for (let i = 0; i < 40; i++) {
                await key("Tab");
                const name = await focused();
                if (!name) continue;
                const { width, ratio, cut } = await page.evaluate(() => measures.focus());
                assert.ok(width >= 2 && ratio >= 3 && !cut, `${scheme}, ${name}: an outline of ${width} px, contrast ${ratio}${cut ? `, cut by ${cut}` : ""}`);
                seen.add(name);
            }
            for (const name of ["New conversation", "Delete all", "Settings", "Message", "Send", "Again"]) assert.ok(seen.has(name), `no ${name}`);
        }
    },
    async "light and dark are legible, on a desktop and on a phone"() {
        let least = Infinity;
        for (const [viewport, name] of [[DESKTOP, "desktop"], [PHONE, "phone"]]) {
            for (const scheme of ["light", "dark"]) {
                await show(scheme, viewport);
                await until("no conversation", () => document.querySelector("article"));
                least = Math.min(least, await legible(`${name}, ${scheme}`));
                await page.click("#settings");
                least = Math.min(least, await legible(`${name}, ${scheme}, settings`));
                await key("Escape");
            }
        }
        return `least contrast ${least.toFixed(2)}`;
    },
    async "nothing is wider than a phone"() {
        for (const width of [390, 320]) {
            await show("light", { ...PHONE, width });
            await until("no conversation", () => document.querySelector("article"));
            const narrow = async what => {
                assert.equal(await page.evaluate(() => innerWidth), width);
                none(await page.evaluate(() => measures.overflow()), `${width} px, ${what}`);
            };
            await narrow("a conversation");
            await page.evaluate(() => {
                fill(document.querySelector("article.user .text"), "w".repeat(400));
                fill(document.querySelector("article.assistant .text"), "```\n" + "let x = 1; ".repeat(40) + "\n```\n" + "https://" + "a".repeat(300));
                document.getElementById("model").textContent = "m".repeat(200);
            });
            await narrow("long words and code");
            await page.click("#settings");
            await narrow("settings");
            await key("Escape");
            await page.click("#menu");
            await until("no menu", () => document.querySelector("nav").checkVisibility({ visibilityProperty: true }));
            assert.equal(await focused(), "New conversation");
            await narrow("the menu");
            await legible("the menu");
            await page.mouse.click(width - 20, 300);
            await until("the menu stays", () => !document.querySelector("nav").checkVisibility({ visibilityProperty: true }));
            none(await page.evaluate(() => measures.small()), `${width} px: too small to touch`);
            await page.reload();
        }
    },
    async "what a model writes is text, never HTML"() {
        await show("light", DESKTOP);
        const inner = await page.evaluate(() => {
            const box = document.createElement("div");
            fill(box, "<img src=x onerror=alert(1)>\n```html\n<b>bold</b>\n```\n");
            return box.querySelectorAll("img, b").length + " " + box.querySelector("pre").textContent;
        });
        assert.equal(inner, "0 <b>bold</b>");
    },
    async "screenshots"() {
        if (!option("--screenshots")) return "none asked for";
        fs.mkdirSync(option("--screenshots"), { recursive: true });
        await show("light", DESKTOP);
        await tab("New conversation");
        await key("Enter");
        await ask("What do plants need to grow?");
        await idle();
        await screenshot("page-desktop");
        await show("dark", PHONE);
        await until("no conversation", () => document.querySelector("article"));
        await screenshot("page-phone");
        await show("light", DESKTOP);
    },
    async "nothing went wrong so far, and no other host was asked"() {
        none(wrong, "errors");
        none(asked.map(r => r.url).filter(url => !url.startsWith("data:") && new URL(url).host !== host), "other hosts");
        return `${asked.length} requests`;
    },
    async "an error of the server is shown"() {
        await tab("New conversation");
        await key("Enter");
        await page.$eval("#input", e => { e.value = "word ".repeat(3000); });
        await tab("Send");
        await key("Enter");
        await until("no error", () => document.querySelector(".error")?.textContent);
        for (const scheme of ["light", "dark"]) {
            await show(scheme, DESKTOP);
            await legible(`an error, ${scheme}`);
        }
        assert.match(wrong.splice(0).join("\n"), /^console: Failed to load resource: .*400[^\n]*$/);
        return await text(".error");
    },
    async "history is deleted, one conversation and all"() {
        const count = await page.$$eval("#list li", all => all.length);
        await tab("New conversation");
        await key("Tab", "Tab");
        assert.match(await focused(), /^Delete word/);
        await key("Enter");
        assert.equal(await page.$$eval("#list li", all => all.length), count - 1);
        assert.match(await focused(), /^Delete /);
        await tab("Delete all");
        await key("Enter");
        await until("conversations are left", () => !document.querySelector("#list li, article"));
        assert.equal(question, "Delete all conversations?");
        await page.reload();
        assert.equal(await page.$$eval("#list li, article", all => all.length), 0);
        assert.equal(await page.evaluate(() => localStorage.getItem("tl.talks")), "[]");
        none(wrong, "errors");
    },
};

try {
    for (const [name, step] of Object.entries(steps)) {
        const begun = performance.now();
        const more = await step().catch(e => {
            e.message = `${name}: ${e.message}${wrong.length ? `\nmeanwhile: ${wrong.join("\n")}` : ""}`;
            throw e;
        });
        console.log(`${name}: ${more ? `${more}, ` : ""}${((performance.now() - begun) / 1000).toFixed(1)} s`);
    }
} catch (e) {
    console.error(e.message);
    process.exitCode = 1;
} finally {
    await browser.close();
}
