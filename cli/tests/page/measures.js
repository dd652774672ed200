// Inside the page: the contrast of texts, the outline of the focus, and what is too wide or too small.
globalThis.measures = (() => {
    const shown = e => e.checkVisibility({ visibilityProperty: true, opacityProperty: true });

    function parse(colour) {
        const m = colour.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
        if (!m) throw new Error(`the colour ${colour} cannot be read`);
        return [m[1], m[2], m[3], m[4] ?? 1].map(Number);
    }

    const over = (front, back) => front.slice(0, 3).map((v, i) => v * front[3] + back[i] * (1 - front[3]));

    function behind(e) {
        if (!e) return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
        return over(parse(getComputedStyle(e).backgroundColor), behind(e.parentElement));
    }

    // Relative luminance, by WCAG 2.
    function luminance(rgb) {
        const [r, g, b] = rgb.map(v => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    }

    // The contrast of a colour over what lies behind an element's text.
    function contrast(e, colour) {
        const back = behind(e);
        const [low, high] = [luminance(over(parse(colour), back)), luminance(back)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    }

    // Every text that is shown; of an open dialog only its own.
    function contrasts() {
        const found = [];
        for (const e of (document.querySelector("dialog[open]") ?? document.body).querySelectorAll("*")) {
            if (!shown(e)) continue;
            const style = getComputedStyle(e), own = [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE).map(n => n.data.trim()).join("");
            if (style.opacity !== "1") throw new Error(`${e.tagName} is translucent`);
            if (own || e.value) found.push({ text: (own || e.value).slice(0, 40), colour: style.color, ratio: contrast(e, style.color) });
            if (!e.placeholder) continue;
            const colour = getComputedStyle(e, "::placeholder").color;
            found.push({ text: e.placeholder, colour, ratio: contrast(e, colour) });
        }
        return found;
    }

    // The outline of what has the focus, and what cuts it off.
    function focus() {
        const e = document.activeElement, style = getComputedStyle(e);
        const width = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
        const more = width + parseFloat(style.outlineOffset), { left, right, top, bottom } = e.getBoundingClientRect();
        let cut = left - more < 0 || right + more > innerWidth || top - more < 0 || bottom + more > innerHeight ? "the window" : "";
        for (let box = e.parentElement; box && !cut; box = box.parentElement) {
            if (getComputedStyle(box).overflowX === "visible") continue;
            const b = box.getBoundingClientRect();
            // What scrolls may have been scrolled to its end, where a part of an outline is out of sight.
            if (left - more < b.left - 0.5 || right + more > b.right + 0.5) cut = box.id || box.tagName;
        }
        return { width, ratio: contrast(e.parentElement, style.outlineColor), cut };
    }

    // What reaches over the sides of the window, unless it scrolls or is cut within something that does not.
    function overflow() {
        const root = document.scrollingElement, wide = [];
        if (root.scrollWidth > root.clientWidth) wide.push(`the page: ${root.scrollWidth} px`);
        const kept = e => e && e !== document.body && (getComputedStyle(e).overflowX !== "visible" || kept(e.parentElement));
        for (const e of document.body.querySelectorAll("*")) {
            const { left, right, width } = e.getBoundingClientRect();
            const out = left < -0.5 || right > innerWidth + 0.5;
            if (out && width && shown(e) && !kept(e.parentElement)) wide.push(`${e.tagName} ${e.id}: ${left} to ${right}`);
        }
        // A conversation scrolls up and down only.
        const talk = document.getElementById("talk");
        if (talk.scrollWidth > talk.clientWidth) wide.push(`the conversation: ${talk.scrollWidth} px`);
        return wide;
    }

    // Buttons below WCAG 2.2's smallest target, 24 by 24 px.
    function small() {
        const buttons = [...document.querySelectorAll("button")].filter(shown).map(b => [b.textContent, b.getBoundingClientRect()]);
        return buttons.filter(([, r]) => r.width < 24 || r.height < 24).map(([name]) => name);
    }

    return { contrasts, focus, overflow, small };
})();
