"""300 facts in three languages, and 60 questions of which each needs one of them.

A question asks in the same words, in other forms of them, in synonyms, or only has the fact's topic. Keywords are 6 to
8 words, as the extraction asks for them. The other 285 facts are of the same topics, share words and have their topic's
keywords. One author wrote questions and keywords, so the figures are upper bounds of what a real model reaches.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from core.memory.facts import Fact


class Needed(NamedTuple):
    text: str
    keywords: str
    same: str
    inflected: str
    synonym: str
    implied: str


NEEDED = {
    "en": [
        Needed(
            "User is allergic to peanuts",
            "nuts, food, intolerance, recipes, cooking, dinner, restaurant, snack",
            "Am I allergic to peanuts?",
            "Which allergies against a peanut do I have?",
            "What food intolerance with nuts have I got?",
            "Suggest a Thai dinner for tonight",
        ),
        Needed(
            "User lives in Lisbon with two cats",
            "home, city, Portugal, residence, pets, animals, vacation, apartment",
            "Where in Lisbon does the user live with two cats?",
            "Who is living with a cat in Lisbon?",
            "Which city is my residence?",
            "Who could look after my pets during the vacation?",
        ),
        Needed(
            "User writes backend services in Rust",
            "programming language, code, software, developer, server, API, tooling",
            "In what do I write backend services?",
            "I was writing a backend service, which one?",
            "Which programming language does the developer prefer for server software?",
            "Sketch code for a small API",
        ),
        Needed(
            "User prefers short answers with bullet points",
            "style, concise, brief, replies, format, lists, explain, summary",
            "Do I prefer short answers with bullet points?",
            "Answer shorter, pointing with bullets",
            "What style of replies suits me: concise or long?",
            "Explain photosynthesis",
        ),
        Needed(
            "User is training for a marathon in October",
            "running, sport, race, fitness, exercise, workout, plan, week",
            "When is the marathon I am training for?",
            "How did I train for marathons?",
            "What race is my running exercise aimed at?",
            "Make a plan for my week of sport",
        ),
    ],
    "de": [
        Needed(
            "Nutzer ist Vegetarier und isst keinen Fisch",
            "Ernährung, fleischlos, Essen, Rezept, kochen, Restaurant, Abendessen",
            "Bin ich Vegetarier, esse ich Fisch?",
            "Essen Vegetarier wie ich Fische?",
            "Wie sieht meine fleischlose Ernährung aus?",
            "Schlage ein Rezept zum Abendessen vor",
        ),
        Needed(
            "Nutzer arbeitet als Hebamme in Kiel",
            "Beruf, Job, Geburt, Krankenhaus, Schichtdienst, Stadt, Arbeit, Norden",
            "Arbeite ich als Hebamme in Kiel?",
            "Wo arbeiten Hebammen aus Kiel?",
            "Welchen Beruf habe ich?",
            "Plane meinen Job so, dass der Schichtdienst passt",
        ),
        Needed(
            "Nutzer lernt Klavier seit dem Frühjahr",
            "Musik, Instrument, üben, Noten, Tasten, Unterricht, Hobby, Stücke",
            "Lerne ich Klavier seit dem Frühjahr?",
            "Wie lange habe ich das Klavierspiel, Klaviere und Lernen begonnen?",
            "Welches Instrument übe ich?",
            "Empfiehl mir leichte Stücke zum Üben",
        ),
        Needed(
            "Nutzer hat Angst vor dem Fliegen",
            "Flugangst, Reise, Flugzeug, Urlaub, Zug, Anreise, Flughafen",
            "Habe ich Angst vor dem Fliegen?",
            "Welche Ängste habe ich, wenn geflogen wird, beim fliegen?",
            "Leide ich an Flugangst?",
            "Wie komme ich am besten in den Urlaub nach Rom?",
        ),
        Needed(
            "Nutzer bevorzugt Antworten auf Deutsch mit Quellen",
            "Sprache, Belege, Literatur, Nachweise, Stil, recherchieren",
            "Bevorzuge ich Antworten auf Deutsch mit Quellen?",
            "Welche Antwort mit Quelle ist mir bevorzugt?",
            "In welcher Sprache und mit welchen Belegen soll geschrieben werden?",
            "Kannst du etwas zur Geschichte der Hanse recherchieren?",
        ),
    ],
    "zh": [
        Needed(
            "用户对海鲜过敏",
            "虾, 螃蟹, 食物, 饮食, 菜谱, 餐厅, 晚餐, 忌口",
            "用户对海鲜过敏吗?",
            "我会不会因为吃海鲜而过敏?",
            "我有哪些饮食忌口?",
            "推荐一家餐厅吃晚餐",
        ),
        Needed(
            "用户在成都的一家医院当护士",
            "工作, 职业, 医疗, 夜班, 病人, 四川, 上班",
            "用户在成都的医院当护士吗?",
            "成都医院里的护士是我吗?",
            "我的职业属于医疗行业吗?",
            "帮我安排上班和夜班后的休息",
        ),
        Needed(
            "用户正在准备十月的日语考试",
            "学习, 语言, 复习, 单词, 语法, 计划, 日本, 背诵",
            "用户在准备哪一次日语考试?",
            "十月考日语,怎样准备?",
            "我现在的语言学习目标是什么?",
            "制定一个每周的复习计划",
        ),
        Needed(
            "用户喜欢用Python写数据分析脚本",
            "编程, 代码, 程序, 语言, 图表, 统计, 表格, 处理",
            "我喜欢用Python写数据分析脚本吗?",
            "数据分析的脚本用什么写?",
            "我常用的编程语言?",
            "处理这个表格并画一张图表",
        ),
        Needed(
            "用户养了一只金毛犬叫豆豆",
            "宠物, 小狗, 动物, 散步, 兽医, 喂养, 狗粮, 遛狗",
            "用户养的金毛犬叫什么?",
            "豆豆是金毛犬吗?",
            "我的宠物小狗叫什么名字?",
            "周末去哪里遛狗比较好?",
        ),
    ],
}

PEOPLE = {
    "en": ["Paul", "Maria", "John", "Aisha", "Tom", "Lena", "Omar", "Kate", "Ben"],
    "de": ["Jürgen", "Anke", "Stefan", "Ute", "Holger", "Silke", "Jonas", "Meike", "Bernd"],
    "zh": ["小王", "小李", "老张", "阿明", "小陈", "老刘", "阿华", "小赵", "老周"],
}
DISTRACTORS = {
    "en": [
        ("User's colleague {} is allergic to cats", "allergy, pets, animals, health, colleague"),
        ("{} from work eats peanuts every day", "snack, food, office, habit"),
        ("User's friend {} lives in Porto", "city, Portugal, friend, visit"),
        ("{} once wrote a service in Java", "programming language, code, software, colleague"),
        ("User's neighbour {} prefers long walks", "exercise, leisure, neighbour, week"),
        ("{} is training new staff in October", "work, team, onboarding, plan"),
        ("User met {} at a race in Madrid", "running, sport, friend, travel"),
        ("{} recommended a restaurant near the river", "food, dinner, city, evening"),
        ("User borrowed a book on style from {}", "reading, writing, library, friend"),
        ("{} explained the API of the old server to the user", "code, software, documentation, colleague"),
    ],
    "de": [
        ("Kollege {} ist Vegetarier und isst viel Käse", "Ernährung, Essen, Kollege, Kantine"),
        ("{} arbeitet als Lehrer in Kiel", "Beruf, Job, Stadt, Schule"),
        ("Freund {} spielt Gitarre seit dem Herbst", "Musik, Instrument, Freund, Band"),
        ("{} fliegt gern nach Spanien", "Reise, Urlaub, Flugzeug, Sonne"),
        ("Nachbar {} hat Angst vor Hunden", "Tiere, Nachbar, Spaziergang"),
        ("{} bevorzugt Tee am Morgen", "Frühstück, Getränk, Gewohnheit"),
        ("{} lernt Deutsch mit einer App", "Sprache, Kurs, Handy, üben"),
        ("Nutzer traf {} im Zug nach Rom", "Reise, Bekanntschaft, Urlaub"),
        ("{} kocht am Abend Fisch", "Essen, Rezept, Küche, Abendessen"),
        ("Nutzer lieh {} ein Buch über die Hanse", "Geschichte, lesen, Literatur"),
    ],
    "zh": [
        ("用户的同事{}对猫过敏", "宠物, 健康, 同事, 动物"),
        ("{}喜欢吃海鲜火锅", "食物, 晚餐, 朋友, 餐厅"),
        ("用户的朋友{}在成都当老师", "工作, 职业, 学校, 四川"),
        ("{}去年通过了英语考试", "学习, 语言, 成绩, 单词"),
        ("{}用Java写游戏程序", "编程, 代码, 娱乐, 同事"),
        ("邻居{}养了一只黑猫", "宠物, 动物, 邻居"),
        ("{}在医院做过手术", "健康, 医疗, 病人"),
        ("用户和{}一起爬过青城山", "旅行, 周末, 运动"),
        ("{}推荐了一本统计学的书", "阅读, 学习, 图书馆"),
        ("{}正在准备搬家到重庆", "搬家, 城市, 计划"),
    ],
}


def facts(seed: int) -> list[Fact]:
    """The 300 facts. Confidence and age say nothing about which are needed."""
    chance = random.Random(seed)
    rows = [(needed.text, needed.keywords) for group in NEEDED.values() for needed in group]
    spare = [
        (text.format(person), keywords)
        for language, templates in DISTRACTORS.items()
        for text, keywords in templates
        for person in PEOPLE[language]
    ]
    extra = [(f"{text}, {year}", words) for year in (2024, 2025) for text, words in spare]
    rows += [*spare, *extra][: 300 - len(rows)]
    chance.shuffle(rows)
    now = datetime.now(UTC)
    return [
        Fact(
            id=f"fact_{number:08x}",
            content=text,
            confidence=chance.choice([0.7, 0.75, 0.8, 0.85, 0.9, 0.95]),
            created_at=(now - timedelta(days=chance.randrange(365))).isoformat(),
            keywords=words.split(", "),
        )
        for number, (text, words) in enumerate(rows)
    ]


def questions() -> list[tuple[str, str, str, str]]:
    """The 60 questions: language, kind, text, and the text of the fact that each needs."""
    kinds = Needed._fields[2:]
    return [
        (language, kind, getattr(needed, kind), needed.text)
        for language, group in NEEDED.items()
        for needed in group
        for kind in kinds
    ]
