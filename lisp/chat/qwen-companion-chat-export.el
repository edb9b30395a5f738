;;; qwen-companion-chat-export.el --- A chat as Markdown or Org  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Writes a conversation to a file.  It is Markdown already; for Org, its code
;; blocks, headings, lists, emphasis and links are converted.
;;
;; The text comes from a model.  In Org, keywords, links, calls, macros and
;; drawers in it are disabled, since they could include a file or run code; in
;; both formats, so are local variables of the file.

;;; Code:

(require 'cl-lib)
(require 'subr-x)
(require 'qwen-companion-chat-blocks)
(require 'qwen-companion-chat-state)
(require 'qwen-companion-chat-tools)
(require 'qwen-companion-daemon-messages)

;;; Parts of a conversation

(defun qwen-companion-chat-export--parts ()
  "Return the conversation as a list of (KIND . DATA).
KIND is `heading' or `note' with a line, `quote' or `text' with Markdown,
`steps' with lines, or `code' with (LANGUAGE . TEXT)."
  (cl-loop for block in (qwen-companion-chat-blocks-list)
           for id = (qwen-companion-chat-block-id block)
           append
           (pcase (car id)
             ('user (list (cons 'heading (qwen-companion-chat-export--first-line block))
                          (cons 'text (qwen-companion-chat-export--message block))))
             ('answer (list (cons 'text (qwen-companion-chat-export--message block))))
             ('thought (list (cons 'quote (qwen-companion-chat-export--message block))))
             ('plan (list (cons 'steps (qwen-companion-chat-export--block-text block))))
             ('tool (qwen-companion-chat-export--tool
                     (qwen-companion-chat-tools-get (cadr id))))
             (_ (list (cons 'note (qwen-companion-chat-export--first-line block)))))))

(defun qwen-companion-chat-export--block-text (block)
  "Return the text of BLOCK without properties."
  (buffer-substring-no-properties (qwen-companion-chat-block-start block)
                                  (qwen-companion-chat-block-end block)))

(defun qwen-companion-chat-export--first-line (block)
  "Return the first line of BLOCK that is not empty."
  (car (split-string (qwen-companion-chat-export--block-text block) "[\f\n]+" t)))

(defun qwen-companion-chat-export--message (block)
  "Return the message in BLOCK, without the lines above it."
  (let ((start (qwen-companion-chat-block-start block))
        (end (qwen-companion-chat-block-end block)))
    (buffer-substring-no-properties
     (or (text-property-not-all start end 'qwen-companion-chat-voice nil) end)
     end)))

(defun qwen-companion-chat-export--tool (tool)
  "Return the parts about TOOL."
  (cons (cons 'note (format "%s: %s" (qwen-companion-daemon-tool-status tool)
                            (or (qwen-companion-chat-tools-title tool) "a tool")))
        (append
         (mapcar (lambda (diff)
                   (cons 'note (concat "Change: " (qwen-companion-daemon-diff-path diff))))
                 (qwen-companion-daemon-tool-diffs tool))
         (qwen-companion-chat-export--tool-text
          (if (qwen-companion-daemon-tool-command tool) "sh" "text")
          (or (qwen-companion-daemon-tool-command tool) (qwen-companion-daemon-tool-input tool))
          (if (qwen-companion-daemon-tool-command tool)
              (qwen-companion-daemon-tool-command-more tool)
            (qwen-companion-daemon-tool-input-more tool)))
         (qwen-companion-chat-export--tool-text
          "text"
          (qwen-companion-daemon-tool-output tool)
          (qwen-companion-daemon-tool-output-more tool)))))

(defun qwen-companion-chat-export--tool-text (language text more)
  "Return the parts about TEXT in LANGUAGE, with MORE characters omitted."
  (when text
    (cons (cons 'code (cons language text))
          (and more
               (list (cons 'note (format "%d more characters omitted" more)))))))

;;; Code blocks

(defun qwen-companion-chat-export--split (text)
  "Return TEXT, Markdown, as a list of lines and (LANGUAGE . CODE)."
  (let ((lines (split-string text "\n"))
        parts)
    (while lines
      (let ((line (pop lines)))
        (if (not (string-match
                  "\\` \\{0,3\\}\\(```+\\|~~~+\\)[ \t]*\\([^ \t`]*\\)[^`]*\\'" line))
            (push line parts)
          (let ((end (format "\\` \\{0,3\\}%s+[ \t]*\\'" (match-string 1 line)))
                (language (match-string 2 line))
                code)
            (while (and lines (not (string-match-p end (car lines))))
              (push (pop lines) code))
            (pop lines)
            (push (cons language (string-join (nreverse code) "\n")) parts)))))
    (nreverse parts)))

(defun qwen-companion-chat-export--convert (text line code)
  "Return TEXT, Markdown, with its lines and code blocks converted.
LINE is a function of a line, CODE one of a language and a text."
  (mapconcat (lambda (part)
               (if (stringp part)
                   (concat (funcall line part) "\n")
                 (funcall code (car part) (cdr part))))
             (qwen-companion-chat-export--split text) ""))

(defun qwen-companion-chat-export--language (language)
  "Return the untrusted LANGUAGE if it has the form of a name, else \"\"."
  (if (string-match-p "\\`[[:alnum:]+#_-]+\\'" language) language ""))

;;; Markdown

(defun qwen-companion-chat-export--md-code (language text)
  "Return TEXT in LANGUAGE as a code block of Markdown."
  (let ((fence "```"))
    (while (string-match-p (concat "^[ \t]*" fence) text)
      (setq fence (concat fence "`")))
    (concat fence (qwen-companion-chat-export--language language) "\n"
            (string-remove-suffix "\n" text) "\n" fence "\n")))

(defun qwen-companion-chat-export--md (part)
  "Return PART as Markdown."
  (pcase part
    (`(heading . ,text) (format "## %s\n" text))
    (`(note . ,text) (format "*%s*\n" (replace-regexp-in-string "[*_`\\]" "\\\\\\&" text)))
    (`(quote . ,text) (replace-regexp-in-string "^" "> " (string-trim text)))
    (`(steps . ,text) (replace-regexp-in-string "^\\(\\[.\\]\\)" "- \\1" text))
    (`(code . (,language . ,text)) (qwen-companion-chat-export--md-code language text))
    (`(text . ,text)
     (qwen-companion-chat-export--convert text #'identity #'qwen-companion-chat-export--md-code))))

;;; Org

(defun qwen-companion-chat-export--org-code (language text)
  "Return TEXT in LANGUAGE as a block of Org."
  (let ((language (qwen-companion-chat-export--language language)))
    (concat (if (string-empty-p language)
                "#+begin_example\n"
              (format "#+begin_src %s\n" language))
            ;; As `org-escape-code-in-string' does.
            (replace-regexp-in-string "^[ \t]*\\(,*\\(?:\\*\\|#\\+\\)\\)" ",\\1" text nil nil 1)
            (if (string-suffix-p "\n" text) "" "\n")
            (if (string-empty-p language) "#+end_example\n" "#+end_src\n"))))

(defconst qwen-companion-chat-export--org-inline
  '(("`\\([^`\n]+\\)`" . "~\\1~")
    ("\\*\\*\\([^* \n]\\(?:[^*\n]*[^* \n]\\)?\\)\\*\\*" . "*\\1*")
    ("~~\\([^~\n]+\\)~~" . "+\\1+")
    ("\\[\\([^][\n]+\\)\\](\\(https?://[^() \n]+\\))" . "[[\\2][\\1]]"))
  "Alist (REGEXP . REPLACEMENT) from Markdown to Org inside a line.")

(defconst qwen-companion-chat-export--org-active
  (rx (or (seq (or bol (any " \t('\"{-"))
               (group-n 2 "`" (not (any "`~ \t"))
                        (? (* (not (any "`~"))) (not (any "`~ \t")))
                        "`")
               (or eol (any " \t.,;:!?'\")}[-")))
          (seq (group-n 1 (or "[" "{")) (or "[" "{{"))
          (seq (group-n 1 "@") "@")
          (seq (group-n 1 "<") (or "%%(" (seq "<" (* (not (any "<>"))) ">>")))
          ;; Plain and angle links; other link types of Org only show something.
          (seq (group-n 1 (or "elisp" "shell" (seq "file+" (+ alnum)))) ":")
          (seq (group-n 1 "src") "_" (+ (not (any " \t[{"))) (any "[{"))
          (seq (group-n 1 "call") "_" (+ (not (any " \t[("))) (any "[("))
          ;; LaTeX may read files.
          (seq (group-n 1 "\\") (any "a-zA-Z(["))))
  "Matches active syntax inside a line of Org, or code, which is inert.
A character after group 1 makes the syntax inert; group 2 is code.")

(defconst qwen-companion-chat-export--org-active-line
  (rx string-start (* (any " \t"))
      (or "#" "%%("
          (seq ":" (+ (not (any " \t:"))) ":")
          (seq (or "SCHEDULED" "DEADLINE" "CLOSED" "CLOCK") ":")))
  "Matches the beginning of a line that is active in Org.")

(defun qwen-companion-chat-export--org-inert (line)
  "Return LINE with all active Org syntax made inert.
A zero-width space breaks it, as Org's manual suggests."
  (let ((case-fold-search t)
        (start 0)
        (parts ()))
    (while (string-match qwen-companion-chat-export--org-active line start)
      (let ((end (or (match-end 2) (match-end 1))))
        (push (substring line start end) parts)
        (unless (match-end 2)
          (push "\u200b" parts))
        (setq start end)))
    (concat (if (string-match-p qwen-companion-chat-export--org-active-line line) "\u200b" "")
            (mapconcat #'identity (nreverse (cons (substring line start) parts)) ""))))

(defun qwen-companion-chat-export--org-plain (text)
  "Return TEXT as one line of Org without active syntax."
  (qwen-companion-chat-export--org-inert
   (mapconcat #'identity (split-string text "[ \t\n\r\f]+" t) " ")))

(defun qwen-companion-chat-export--org-line (line)
  "Return LINE of Markdown as Org without active syntax."
  (let ((heading (string-match "\\`\\(#\\{1,6\\}\\) +\\(.*\\)" line))
        (stars ""))
    (when heading
      (setq stars (concat (make-string (+ 2 (length (match-string 1 line))) ?*) " ")
            line (match-string 2 line)))
    (setq line (qwen-companion-chat-export--org-inert line))
    (pcase-dolist (`(,pattern . ,replacement) qwen-companion-chat-export--org-inline)
      (setq line (replace-regexp-in-string pattern replacement line)))
    (if heading
        (concat stars line)
      (replace-regexp-in-string "\\`\\([ \t]*\\)\\*+ " "\\1- " line))))

(defun qwen-companion-chat-export--org (part)
  "Return PART as Org."
  (pcase part
    (`(heading . ,text) (format "** %s\n" (qwen-companion-chat-export--org-plain text)))
    (`(note . ,text) (format "- %s\n" (qwen-companion-chat-export--org-plain text)))
    (`(quote . ,text)
     (format "#+begin_quote\n%s#+end_quote\n"
             (qwen-companion-chat-export--convert (string-trim text) #'qwen-companion-chat-export--org-line
                                                  #'qwen-companion-chat-export--org-code)))
    (`(steps . ,text)
     (replace-regexp-in-string
      "^\\(\\[.\\]\\)" "- \\1"
      (mapconcat #'qwen-companion-chat-export--org-inert
                 (split-string (string-replace "[x]" "[X]" text) "\n") "\n")))
    (`(code . (,language . ,text)) (qwen-companion-chat-export--org-code language text))
    (`(text . ,text)
     (qwen-companion-chat-export--convert text #'qwen-companion-chat-export--org-line
                                          #'qwen-companion-chat-export--org-code))))

;;; The file

(defun qwen-companion-chat-export--document (format)
  "Return the conversation as a document in FORMAT, `md' or `org'."
  (let ((title (string-replace
                ;; Emacs would search it for variables.
                "-*-" "- * -"
                (or (qwen-companion-daemon-session-title qwen-companion-chat-session) "A chat")))
        (parts (qwen-companion-chat-export--parts)))
    (with-temp-buffer
      (insert (if (eq format 'org) "* " "# ")
              (if (eq format 'org)
                  (qwen-companion-chat-export--org-plain title)
                title)
              "\n")
      (dolist (part parts)
        (insert "\n" (string-trim (if (eq format 'org)
                                      (qwen-companion-chat-export--org part)
                                    (qwen-companion-chat-export--md part))
                                  "\n+" "\n+")
                "\n"))
      (when (save-excursion (re-search-backward "Local Variables[:]" nil t))
        ;; Emacs searches the last page for them.
        (insert "\n\f\n"))
      (buffer-string))))

;;;###autoload
(defun qwen-companion-chat-export (file)
  "Write the conversation of this chat to FILE, as Markdown or as Org.
Use Org when the name ends in \".org\".  Texts cut in the conversation are
cut in FILE too.  Ask before overwriting a file."
  (interactive
   (list (read-file-name "Export to (.md or .org): " nil nil nil "chat.md"))
   qwen-companion-chat-mode)
  (unless (derived-mode-p 'qwen-companion-chat-mode)
    (user-error "Not in a chat buffer"))
  (let ((coding-system-for-write 'utf-8-unix))
    (write-region (qwen-companion-chat-export--document
                   (if (string-suffix-p ".org" file t) 'org 'md))
                  nil file nil nil nil t)))

(provide 'qwen-companion-chat-export)
;;; qwen-companion-chat-export.el ends here
