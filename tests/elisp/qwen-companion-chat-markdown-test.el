;;; qwen-companion-chat-markdown-test.el --- Tests of Markdown in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; How what is said looks, however it is cut into pieces, and that it can do
;; nothing else.

;;; Code:

(require 'qwen-companion-chat-test-helper)

(defun qwen-companion-chat-markdown-test--find (text)
  "Go to TEXT in the conversation."
  (qwen-companion-test-go-to text)
  (goto-char (match-beginning 0)))

(defun qwen-companion-chat-markdown-test--faces (text)
  "Return the faces of the first character of TEXT, a list."
  (qwen-companion-chat-markdown-test--find text)
  (ensure-list (get-text-property (point) 'face)))

(defmacro qwen-companion-chat-markdown-test-with (text &rest body)
  "Run BODY in chats that were answered TEXT, whole and in pieces of any size."
  (declare (indent 1) (debug t))
  `(dolist (size '(1 3 1000000))
     (qwen-companion-chat-test-with
       (dolist (piece (seq-partition ,text size))
         (qwen-companion-chat-test-say piece)
         (qwen-companion-chat-test-show))
       (should (equal (concat "\n" ,text "\n") (qwen-companion-chat-test-conversation)))
       ,@body)))

(ert-deftest qwen-companion-chat-markdown-test-emphasis-titles-and-links ()
  (qwen-companion-chat-markdown-test-with
      (concat "# Title\nSome **strong** and *weak* and _low_ and `code *x*` and ~~gone~~.\n"
              "- item with snake_case_name and 2 * 3 * 4\n"
              "See [the manual](https://example.org/a_b_c) or http://example.org/x.")
    (pcase-dolist (`(,text . ,face)
                   '(("Title" . qwen-companion-chat-title) ("strong" . bold) ("weak" . italic)
                     ("low" . italic) ("code" . qwen-companion-chat-inline-code) ("- item" . bold)
                     ("**" . qwen-companion-chat-markup) ("the manual" . link)
                     ("http://example" . link)))
      (should (memq face (qwen-companion-chat-markdown-test--faces text))))
    (dolist (text '("Some" "snake" "case" "name" "3 *" "x*`" "item"))
      (should-not (memq 'italic (qwen-companion-chat-markdown-test--faces text))))
    (should (member '(:strike-through t)
                    (list (get-text-property
                           (progn (qwen-companion-chat-markdown-test--find "gone") (point)) 'face))))))

;;; Hidden markup

(defun qwen-companion-chat-markdown-test--shown ()
  "Return the conversation as it is drawn."
  (let ((from (point-min))
        (end qwen-companion-chat-blocks-conversation-end)
        parts)
    (while (< from end)
      (let ((next (next-char-property-change from end))
            (display (get-text-property from 'display)))
        (unless (invisible-p from)
          (push (if (stringp display) display (buffer-substring-no-properties from next)) parts))
        (setq from next)))
    (apply #'concat (nreverse parts))))

(ert-deftest qwen-companion-chat-markdown-test-markup-is-hidden-and-copied ()
  (qwen-companion-chat-markdown-test-with
      (concat "## Title\nSome **strong** and *weak* and _low_, ``a ` b`` and ~~gone~~.\n"
              "2 * 3 * 4, [here](https://example.org/)\n"
              "```elisp\n(list \"**\" `a)\n```\n~~~\nplain\n~~~\nEnd of `it`")
    (let ((shown (concat "\nTitle\nSome strong and weak and low, a ` b and gone.\n"
                         "2 * 3 * 4, [here](https://example.org/)\n"
                         "elisp\n(list \"**\" `a)\nplain\nEnd of it\n"))
          (whole (qwen-companion-chat-test-conversation)))
      (should (equal shown (qwen-companion-chat-markdown-test--shown)))
      (should (equal whole (filter-buffer-substring
                            (point-min) qwen-companion-chat-blocks-conversation-end)))
      ;; A search finds the text as it was written.
      (goto-char (point-min))
      (isearch-mode t)
      (isearch-yank-string "**strong** and")
      (should isearch-success)
      (isearch-done)
      (should (looking-back (regexp-quote "**strong** and") (point-min)))
      (call-interactively (key-binding (kbd "C-c C-t")))
      (qwen-companion-chat-test-show)
      (should (equal whole (qwen-companion-chat-markdown-test--shown)))
      (call-interactively (key-binding (kbd "C-c C-t")))
      (qwen-companion-chat-test-show)
      (should (equal shown (qwen-companion-chat-markdown-test--shown)))))
  (let ((qwen-companion-chat-hide-markup nil))
    (qwen-companion-chat-markdown-test-with "Some **strong** `text`"
      (should (equal "\nSome **strong** `text`\n" (qwen-companion-chat-markdown-test--shown))))))

(ert-deftest qwen-companion-chat-markdown-test-stars-and-the-like-are-shown ()
  "No character is hidden that CommonMark shows."
  (dolist (line '("rm -rf build/*.o build/*.a" "def f(*args, **kwargs):" "int *p, *q;" "int **p = *q * *r;"
                  "*/5 * * * * cron" "2*3*4 = 24 and a*b" "a ** b ** c" "__init__.py and __main__"
                  "foo_bar_baz" "x = `a` * *y" "\\*no\\*" "`*` and `**`" "~ 5 ~ 6" "a `b c"
                  "glob **/*.py and *.[ch]" "http://e.org/_a_b_" "    *code* **here**"
                  "<b class=\"*x*\">" "5 * 4 * 3" "SELECT * FROM t WHERE a=*b" "f(*a, *b)"))
    (qwen-companion-chat-markdown-test-with (concat "Say:\n\n" line)
      (let ((shown (qwen-companion-chat-markdown-test--shown)))
        (should (string-search (string-replace "`" "" line) (string-replace "`" "" shown))))))
  ;; Code and emphasis over several lines: the text below had not come.
  (qwen-companion-chat-markdown-test-with "a `b\n*c* d\n*e*` f\n\n*g* **h *i* j** and ***k***"
    (should (equal "\na `b\n*c* d\n*e*` f\n\ng h i j and k\n"
                   (qwen-companion-chat-markdown-test--shown)))))

(ert-deftest qwen-companion-chat-markdown-test-code-in-lists-and-quotes ()
  "It is copied without the margin of the list."
  (pcase-dolist (`(,text . ,copied)
                 '(("1. One:\n\n    ```sh\n    ls *.o\n      x\n    ```\n" . "ls *.o\n  x\n")
                   ("- a\n  - b\n\n      ~~~\n      one\n\n      two\n      ~~~\n" . "one\n\ntwo\n")
                   ("- ```py\n  f(*a)\n  ```\n" . "f(*a)\n")
                   ("> Say:\n>\n> ```\n> a\n> > b\n> ```\n" . "a\n> b\n")
                   ("   ```\n   a\n   ```\n" . "a\n")))
    (qwen-companion-chat-markdown-test-with (concat "```\nother\n```\n\n" text "\nEnd *it*.")
      (qwen-companion-test-go-to (car (split-string copied "\n")))
      (qwen-companion-chat-copy-code)
      (should (equal copied (current-kill 0)))
      (should (string-suffix-p "End it.\n" (qwen-companion-chat-markdown-test--shown)))))
  (qwen-companion-chat-markdown-test-with "```\nother\n```\n\nText\n\n    ```\n    a *b*\n    ```\n\nEnd."
    (should (string-search "    ```\n    a *b*\n    ```" (qwen-companion-chat-markdown-test--shown)))))

(ert-deftest qwen-companion-chat-markdown-test-only-answers-hide-markup ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     (qwen-companion-chat-test-text 'user "Say **this**:\n```\n`x`\n```" :by 'me)
     (qwen-companion-chat-test-text 'thought "That is **bold**.\n"))
    (qwen-companion-chat-test-show)
    (qwen-companion-chat-toggle-all-folds)
    (should (equal (qwen-companion-chat-test-conversation)
                   (qwen-companion-chat-markdown-test--shown)))))

(ert-deftest qwen-companion-chat-markdown-test-a-fence-that-goes-on-is-visible ()
  (qwen-companion-chat-test-with
    (dolist (piece '("```\nx\n" "```" " not the end\n"))
      (qwen-companion-chat-test-say piece)
      (qwen-companion-chat-test-show))
    (should (equal "\nx\n``` not the end\n\n" (qwen-companion-chat-markdown-test--shown)))))

(ert-deftest qwen-companion-chat-markdown-test-files-with-lines-are-links ()
  "They link to existing files in the workspace of a daemon on this machine."
  (dolist (size '(1 1000000))
    (qwen-companion-chat-test-with
      (make-directory "project/src" t)
      (dolist (file '("project/src/a.el" "project/b" "outside"))
        (write-region "one\ntwo\nthree\n" nil file nil 'silent))
      (make-symbolic-link (expand-file-name "outside") "project/inside")
      (let ((absolute (format "%s:3" (expand-file-name "project/b")))
            (linked-p (lambda (text)
                        (qwen-companion-chat-markdown-test--find text)
                        (get-text-property (point) 'qwen-companion-chat-place)))
            (tell (lambda (&rest more)
                    (apply #'qwen-companion-chat-test-tell 'daemon-state
                           :state 'connected :host "127.0.0.1:4170" more)))
            (show (lambda (text)
                    (dolist (piece (seq-partition text size))
                      (qwen-companion-chat-test-say piece)
                      (qwen-companion-chat-test-show)))))
        (funcall tell :local t :workspace (expand-file-name "project"))
        (funcall show (concat "See `src/a.el:2`, (b:10) and " absolute ".\n"
                              "src/none:1 src:1 ../outside:1 inside:1\n" (expand-file-name "outside")
                              ":1 /ssh:x:/b:1 ~/b:1 src/a.el:0 b:1x\nhttps://e.org/b:1 /dev/null:1\n"))
        (dolist (text (list "src/a.el:2" "b:10" absolute))
          (should (funcall linked-p text)))
        (dolist (text (list "src/none" "src:1" "../outside" "inside:1"
                            (expand-file-name "outside") "/ssh:x" "x:/b" "~/b" "src/a.el:0"
                            "b:1x" "https" "e.org/b" "/dev/null"))
          (should-not (funcall linked-p text)))
        (let ((chat (current-buffer)))
          (qwen-companion-chat-markdown-test--find "src/a.el:2")
          (call-interactively (key-binding (kbd "RET")))
          (with-current-buffer (window-buffer)
            (should (equal "a.el" (file-name-nondirectory buffer-file-name)))
            (should (looking-at "two"))
            (kill-buffer))
          (set-buffer chat)
          ;; What it names may have changed since.
          (delete-file "project/b")
          (make-symbolic-link (expand-file-name "outside") "project/b")
          (qwen-companion-chat-markdown-test--find "b:10")
          (should-error (call-interactively #'qwen-companion-chat-follow-link) :type 'user-error))
        (funcall tell :local nil :workspace (expand-file-name "project"))
        (funcall show "\nThen src/a.el:3 there.\n")
        (should-not (funcall linked-p "src/a.el:3"))))))

(ert-deftest qwen-companion-chat-markdown-test-code-has-the-colours-of-its-language ()
  (qwen-companion-chat-markdown-test-with
      "Look:\n```elisp\n(defun name ()\n  \"Text *not weak*.\")\n```\nThat is *it*."
    (should (memq 'font-lock-keyword-face (qwen-companion-chat-markdown-test--faces "defun")))
    (should (memq 'qwen-companion-chat-code (qwen-companion-chat-markdown-test--faces "defun")))
    (should-not (memq 'italic (qwen-companion-chat-markdown-test--faces "not weak")))
    (should (memq 'italic (qwen-companion-chat-markdown-test--faces "it*")))
    (should (memq 'qwen-companion-chat-markup (qwen-companion-chat-markdown-test--faces "```elisp")))
    (qwen-companion-chat-markdown-test--find "defun")
    (qwen-companion-chat-copy-code)
    (should (equal "(defun name ()\n  \"Text *not weak*.\")\n" (current-kill 0)))))

;; Its faces would be garbage to look through for the rest of the session.
(ert-deftest qwen-companion-chat-markdown-test-a-flood-of-text-has-faces-where-it-is-shown-later ()
  (qwen-companion-chat-test-with
    (dotimes (_ 10)
      (dotimes (_ 2)
        (qwen-companion-chat-test-say (concat "**strong**\n" (apply #'concat (make-list 400 "It goes on\n")))))
      (qwen-companion-chat-markdown--check-flood (current-buffer))
      ;; As redisplay does.
      (jit-lock-fontify-now))
    (should-not (memq 'bold (qwen-companion-chat-markdown-test--faces "strong")))
    (should (< (length (object-intervals (current-buffer))) 40))
    (qwen-companion-chat-test-show)
    (should (memq 'bold (qwen-companion-chat-markdown-test--faces "strong")))
    (should-not (text-property-any (point) qwen-companion-chat-blocks-conversation-end
                                   'fontified t))))

(ert-deftest qwen-companion-chat-markdown-test-no-mode-is-loaded-while-the-user-types ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "```css\na\n```\n")
    (qwen-companion-chat-markdown--fontify (point-min) (point-max))
    (cl-letf* ((idle '(0 0 200000 0))
               (noninteractive nil)
               (loaded nil)
               ((symbol-function 'current-idle-time) (lambda () idle))
               ((symbol-function 'qwen-companion-untrusted-major-mode)
                (lambda (_) (ignore (setq loaded t)))))
      (qwen-companion-chat-markdown--colour-next (current-buffer))
      (should-not loaded)
      (setq idle '(0 1 0 0))
      (while (not loaded)
        (accept-process-output nil 0.02)))))

(ert-deftest qwen-companion-chat-markdown-test-colours-do-not-keep-the-user-waiting ()
  "They come after the text is shown, and not while keys are typed."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "```elisp\n(defun name ())\n```\n")
    (qwen-companion-chat-markdown--fontify (point-min) qwen-companion-chat-blocks-conversation-end)
    (should (equal '(qwen-companion-chat-code) (qwen-companion-chat-markdown-test--faces "defun")))
    (let ((unread-command-events (list ?x)))
      (qwen-companion-chat-markdown--colour-next (current-buffer)))
    (should (equal '(qwen-companion-chat-code) (qwen-companion-chat-markdown-test--faces "defun")))
    (qwen-companion-chat-test-show)
    (should (memq 'font-lock-keyword-face (qwen-companion-chat-markdown-test--faces "defun")))))

(ert-deftest qwen-companion-chat-markdown-test-a-chat-that-is-killed-before-its-colours ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "```elisp\n(defun name ())\n```\n")
    (qwen-companion-chat-markdown--fontify (point-min) qwen-companion-chat-blocks-conversation-end)
    (let ((chat (current-buffer)))
      (kill-buffer)
      (qwen-companion-chat-markdown--colour-next chat))))

(ert-deftest qwen-companion-chat-markdown-test-a-fence-of-another-kind-is-code ()
  "Code at the very end is closed, and the levels of headings differ."
  (qwen-companion-chat-markdown-test-with "# One\n### Three\n####### None\n```python\nimport os\n```"
    (should (memq 'font-lock-keyword-face (qwen-companion-chat-markdown-test--faces "import")))
    (should (memq 'outline-1 (qwen-companion-chat-markdown-test--faces "One")))
    (should (memq 'outline-3 (qwen-companion-chat-markdown-test--faces "Three")))
    (should (memq 'qwen-companion-chat-markup (qwen-companion-chat-markdown-test--faces "### Three")))
    (should-not (qwen-companion-chat-markdown-test--faces "None")))
  (qwen-companion-chat-markdown-test-with "~~~~\n```\n~~~\n# no title\n~~~~\n# Title\n"
    (should (equal '(qwen-companion-chat-code) (qwen-companion-chat-markdown-test--faces "# no title")))
    (should (memq 'qwen-companion-chat-title (qwen-companion-chat-markdown-test--faces "# Title")))))

(ert-deftest qwen-companion-chat-markdown-test-thoughts-are-plain-and-folded ()
  (qwen-companion-chat-test-with
    (dolist (piece '("# Hm *so*\n" "more"))
      (qwen-companion-chat-test-turn (qwen-companion-chat-test-text 'thought piece)))
    (qwen-companion-chat-test-show)
    (should (equal '(qwen-companion-chat-thought) (qwen-companion-chat-markdown-test--faces "Hm")))
    (should (invisible-p (point)))
    (qwen-companion-chat-markdown-test--find "more")
    (should (invisible-p (point)))
    (goto-char (point-min))
    (should-not (invisible-p (point)))
    (call-interactively (key-binding (kbd "TAB")))
    (qwen-companion-chat-markdown-test--find "more")
    (should-not (invisible-p (point)))
    (qwen-companion-chat-test-turn (qwen-companion-chat-test-text 'thought " still"))
    (qwen-companion-chat-markdown-test--find "still")
    (should-not (invisible-p (point)))
    (qwen-companion-chat-toggle-fold)
    (should (looking-at "Thought"))))

(ert-deftest qwen-companion-chat-markdown-test-search-opens-folded-matches ()
  "A match in the next block folds the one before; quitting folds it too."
  (qwen-companion-chat-test-with
    (dolist (turn '("t1" "t2"))
      (qwen-companion-chat-test-turn
       (list :kind 'text :turn turn :voice 'thought :text "the hidden word\n")))
    (let* ((place (lambda (turn)
                    (save-excursion
                      (goto-char (qwen-companion-chat-block-start
                                  (qwen-companion-chat-blocks-get (list 'thought turn nil 1))))
                      (search-forward "hidden")
                      (point))))
           (open (lambda (turn) (not (invisible-p (funcall place turn)))))
           (search (lambda ()
                     (goto-char (point-min))
                     (isearch-mode t)
                     (isearch-yank-string "hidden"))))
      (should-not (funcall open "t1"))
      (funcall search)
      (should (= (point) (funcall place "t1")))
      (should (funcall open "t1"))
      (isearch-repeat-forward)
      (should (= (point) (funcall place "t2")))
      (should-not (funcall open "t1"))
      (should (funcall open "t2"))
      (condition-case nil (isearch-cancel) (quit nil))
      (should-not (funcall open "t2"))
      (funcall search)
      (isearch-exit)
      (should (funcall open "t1"))
      (should (= (point) (funcall place "t1")))
      (let ((search-invisible nil))
        (goto-char (funcall place "t1"))
        (isearch-mode t)
        (isearch-yank-string "hidden")
        (should-not isearch-success)
        (isearch-exit)))))

(defun qwen-companion-chat-markdown-test--seen ()
  "Return the conversation as it is seen."
  (let ((position (point-min)) seen)
    (while (< position qwen-companion-chat-blocks-conversation-end)
      (unless (invisible-p position)
        (push (string (char-after position)) seen))
      (dolist (overlay (overlays-in position (1+ position)))
        (when (and (= (1+ position) (overlay-end overlay)) (overlay-get overlay 'after-string))
          (push (substring-no-properties (overlay-get overlay 'after-string)) seen)))
      (cl-incf position))
    (apply #'concat (nreverse seen))))

(ert-deftest qwen-companion-chat-markdown-test-the-rest-of-a-long-line-is-folded ()
  "It is folded in any number of pieces, and can be opened, copied and searched."
  (dolist (size '(777 1000000))
    (qwen-companion-chat-test-with
      (let ((line (concat (make-string 5000 ?a) (make-string 2000 ?b) "c")))
        (dolist (piece (seq-partition (concat "```\n" line "\nnext\n```\n" line) size))
          (qwen-companion-chat-test-say piece))
        (let* ((cut (concat (make-string 5000 ?a) "2001 more characters; TAB shows them"))
               (folded (concat "\n```\n" cut "\nnext\n```\n" cut "\n")))
          (should (equal folded (qwen-companion-chat-markdown-test--seen)))
          (qwen-companion-chat-markdown-test--find "next")
          (should-error (qwen-companion-chat-toggle-fold) :type 'user-error)
          (forward-line -1)
          (call-interactively (key-binding (kbd "TAB")))
          (should (equal (concat "\n```\n" line "\nnext\n```\n" cut "\n")
                         (qwen-companion-chat-markdown-test--seen)))
          (end-of-line)
          (call-interactively (key-binding (kbd "TAB")))
          (should (bolp))
          (should (equal folded (qwen-companion-chat-markdown-test--seen)))
          (qwen-companion-chat-copy-code)
          (should (equal (concat line "\nnext\n") (current-kill 0)))
          (qwen-companion-chat-markdown-test--find "c")
          (let ((fold (car (overlays-at (point)))))
            (funcall (overlay-get fold 'isearch-open-invisible) fold)
            (should-not (invisible-p (point)))
            ;; What the user has opened stays so.
            (goto-char (1- qwen-companion-chat-blocks-conversation-end))
            (qwen-companion-chat-toggle-fold)
            (qwen-companion-chat-test-say "d")
            (qwen-companion-chat-markdown-test--find "cd")
            (should-not (invisible-p (point)))))))))

(ert-deftest qwen-companion-chat-markdown-test-each-line-has-its-direction ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "one\nשתיים\nthree")
    (pcase-dolist (`(,text . ,direction)
                   '(("one" . left-to-right) ("שתיים" . right-to-left) ("three" . left-to-right)))
      (qwen-companion-chat-markdown-test--find text)
      (should (eq direction (current-bidi-paragraph-direction))))))

(ert-deftest qwen-companion-chat-markdown-test-hidden-characters-are-shown ()
  "They are shown where a text comes in pieces too; emoji are as they are."
  (qwen-companion-chat-markdown-test-with "On\u200be \U000E0041 ⚠\ufe0f\u202e\n"
    (cl-loop for (character . shown) in '((?\u200b . "200B") (?\U000E0041 . "E0041")
                                          (?\ufe0f) (?\u202e . "202E"))
             do (qwen-companion-chat-markdown-test--find (string character))
             (should (equal shown (get-char-property (point) 'display))))))

(ert-deftest qwen-companion-chat-markdown-test-long-items-go-on-behind-their-bullet ()
  (qwen-companion-chat-markdown-test-with "Text\n- item\n   12. nested\n> said\n"
    (pcase-dolist (`(,text . ,columns) '(("Text" . 0) ("item" . 2) ("nested" . 7) ("said" . 2)))
      (qwen-companion-chat-markdown-test--find text)
      (should (= columns (length (get-text-property (point) 'wrap-prefix)))))))

(ert-deftest qwen-companion-chat-markdown-test-user-text-has-its-own-face ()
  "All of it, and its Markdown has faces all the same."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     (qwen-companion-chat-test-text 'user "Is *it*\n```python\nimport os\n```\ngood?")
     (qwen-companion-chat-test-text 'answer "Yes."))
    (qwen-companion-chat-test-show)
    (dolist (text '("Is" "it*" "import" "good?" "?\n"))
      (should (memq 'qwen-companion-chat-user (qwen-companion-chat-markdown-test--faces text))))
    (should (memq 'italic (qwen-companion-chat-markdown-test--faces "it*")))
    (should (memq 'font-lock-keyword-face (qwen-companion-chat-markdown-test--faces "import")))
    (search-forward "?")
    (should (eq 'qwen-companion-chat-user (get-text-property (point) 'face)))
    (should-not (qwen-companion-chat-markdown-test--faces "Yes."))))

(ert-deftest qwen-companion-chat-markdown-test-copies-are-plain ()
  (qwen-companion-chat-markdown-test-with "Some **strong** text"
    (qwen-companion-chat-markdown-test--find "strong")
    (let ((copy (filter-buffer-substring (point) (+ 6 (point)))))
      (should (equal-including-properties "strong" copy)))))

(ert-deftest qwen-companion-chat-markdown-test-a-mode-that-talks-is-not-heard ()
  (let ((said (qwen-companion-test-messages
                (let ((auto-mode-alist
                       (cons (cons "\\.qwentalk\\'"
                                   (lambda () (prog-mode) (message "Can't guess the indentation")))
                             auto-mode-alist)))
                  (qwen-companion-chat-test-with
                    (qwen-companion-chat-test-say "```qwentalk\nx\n```\n")
                    (qwen-companion-chat-test-show))))))
    (should-not (string-match-p "guess" said))))

;;; Tables

(defun qwen-companion-chat-markdown-test--lines-shown ()
  "Return the lines of the conversation as they are drawn."
  (split-string (qwen-companion-chat-markdown-test--shown) "\n" t))

(ert-deftest qwen-companion-chat-markdown-test-columns-are-below-each-other ()
  (qwen-companion-chat-markdown-test-with
      (concat "| name | lines|verdict |\n|---|--:|:-:|\n| `greet` | 2 | \\| is *fine* |\n"
              "|x||\n| 日本 | 1000 | no end\nText | goes | on.\n")
    (dolist (lines '(("| name  | lines | verdict    |"
                      "|-------|-------|------------|"
                      "| greet |     2 | \\| is fine |"
                      "| x     |       |"
                      "| 日本  |  1000 | no end"
                      "Text | goes | on.")
                     ;; With the markup visible.
                     ("| name    | lines | verdict      |"
                      "|---------|-------|--------------|"
                      "| `greet` |     2 | \\| is *fine* |"
                      "| x       |       |"
                      "| 日本    |  1000 | no end"
                      "Text | goes | on.")))
      (should (equal lines
                     (mapcar (lambda (line) (replace-regexp-in-string "no end *|?$" "no end" line))
                             (qwen-companion-chat-markdown-test--lines-shown))))
      (should (memq 'italic (qwen-companion-chat-markdown-test--faces "fine")))
      (qwen-companion-chat-toggle-markup)
      (qwen-companion-chat-test-show))))

(ert-deftest qwen-companion-chat-markdown-test-text-like-a-table-is-not-aligned ()
  (dolist (text '("| one |  line |\n"
                  "| no  | rule |\n| x | y |\n"
                  "```\n| a | b |\n|---|---|\n| ccc | d |\n```\n"))
    (qwen-companion-chat-markdown-test-with text
      (should-not (text-property-not-all (point-min) (point-max) 'display nil)))))

(ert-deftest qwen-companion-chat-markdown-test-the-beginning-of-a-long-table-is-aligned ()
  "No lines far from those displayed are looked at, wherever the window is."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say (concat "Before\n| n | name |\n|---|---|\n"
                                          (mapconcat (lambda (number) (format "|%d|row|\n" number))
                                                     (number-sequence 1 1000) "")))
    (qwen-companion-chat-test-show)
    (let ((lines (qwen-companion-chat-markdown-test--lines-shown))
          (start (point-min))
          (end (marker-position qwen-companion-chat-blocks-conversation-end)))
      (should (equal "| 7   | row  |" (nth 9 lines)))
      (should (equal "| 198 | row  |" (nth 200 lines)))
      (should (equal "|199|row|" (nth 201 lines)))
      (should (equal "|1000|row|" (nth 1002 lines)))
      (dolist (place (list start (+ 100 start) (/ (+ start end) 2) (- end 100)))
        (pcase-let ((`(jit-lock-bounds ,from . ,to)
                     (qwen-companion-chat-markdown--fontify place (min end (+ 200 place)))))
          (should (< (count-lines from to) 250)))
        ;; Not compared by `should', which would print a thousand lines.
        (unless (equal lines (qwen-companion-chat-markdown-test--lines-shown))
          (ert-fail (list "displayed otherwise after" place)))))))

;;; A stranger's text

(defvar qwen-companion-chat-markdown-test--ran nil "What ran that should not.")

(ert-deftest qwen-companion-chat-markdown-test-code-runs-nothing ()
  "No mode hook, no local variable, no mode that is not for text or programs."
  (let ((note (lambda () (push major-mode qwen-companion-chat-markdown-test--ran))))
    (setq qwen-companion-chat-markdown-test--ran nil)
    (add-hook 'emacs-lisp-mode-hook note)
    (add-hook 'prog-mode-hook note)
    (unwind-protect
        (dolist (language '("elisp" "tar" "zip" "png" "../../x" "el-mode" "(x)" "gz"))
          (qwen-companion-chat-test-with
            (qwen-companion-chat-test-say (concat "```" language "\n"
                                                  ";; -*- eval: (push 'local qwen-companion-chat-markdown-test--ran) -*-\n"
                                                  "yonder\n"
                                                  ";; Local Variables:\n"
                                                  ";; eval: (push 'local qwen-companion-chat-markdown-test--ran)\n"
                                                  ";; End:\n```\n"))
            (qwen-companion-chat-test-show)
            (should (memq 'qwen-companion-chat-code (qwen-companion-chat-markdown-test--faces "yonder")))))
      (remove-hook 'prog-mode-hook note)
      (remove-hook 'emacs-lisp-mode-hook note))
    (should-not qwen-companion-chat-markdown-test--ran)))

(ert-deftest qwen-companion-chat-markdown-test-only-web-links-are-followed ()
  (qwen-companion-chat-markdown-test-with
      "[a](https://example.org) [b](file:///etc/passwd) [c](javascript:x) [d](elisp:(kill-emacs))"
    (let (opened)
      (cl-letf (((symbol-function 'browse-url) (lambda (url &rest _) (push url opened))))
        (qwen-companion-chat-markdown-test--find "a]")
        (call-interactively #'qwen-companion-chat-follow-link)
        (should (equal '("https://example.org") opened))
        (dolist (text '("b]" "c]" "d]"))
          (qwen-companion-chat-markdown-test--find text)
          (should-error (call-interactively #'qwen-companion-chat-follow-link) :type 'user-error))
        (should (equal '("https://example.org") opened))))))

(ert-deftest qwen-companion-chat-markdown-test-long-code-and-lines-are-not-coloured ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say (concat "```elisp\n" (apply #'concat (make-list 3000 "(defun)\n")) "```\n*"
                                          (make-string 5000 ?x) "* end"))
    (qwen-companion-chat-test-show)
    (should (equal '(qwen-companion-chat-code) (qwen-companion-chat-markdown-test--faces "defun")))
    (should-not (memq 'italic (qwen-companion-chat-markdown-test--faces "xxx")))))

;;; Using code

(ert-deftest qwen-companion-chat-markdown-test-the-last-code-from-the-prompt ()
  (qwen-companion-chat-test-with
    (should-error (qwen-companion-chat-copy-code) :type 'user-error)
    (qwen-companion-chat-test-say "```\none\n```\n```\ntwo\nlines\n```\nEnd.")
    (goto-char (point-max))
    (qwen-companion-chat-copy-code)
    (should (equal "two\nlines\n" (current-kill 0)))
    (qwen-companion-chat-markdown-test--find "one")
    (qwen-companion-chat-copy-code)
    (should (equal "one\n" (current-kill 0)))))

(ert-deftest qwen-companion-chat-markdown-test-code-into-the-last-file ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "```\none\n```\n")
    (write-region "begin\nend\n" nil "file.txt" nil 'silent)
    (let ((chat (current-buffer))
          (file (find-file-noselect "file.txt")))
      (pop-to-buffer file)
      (goto-char (point-min))
      (forward-line)
      (pop-to-buffer chat)
      (goto-char (point-max))
      (qwen-companion-chat-insert-code)
      (should (eq chat (window-buffer)))
      (should (equal "begin\none\nend\n" (qwen-companion-test-buffer-text file)))
      (with-current-buffer file (setq buffer-read-only t))
      (should-error (qwen-companion-chat-insert-code) :type 'buffer-read-only))))

(provide 'qwen-companion-chat-markdown-test)
;;; qwen-companion-chat-markdown-test.el ends here
