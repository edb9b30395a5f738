;;; qwen-companion-chat-send-test.el --- Tests of what goes into a prompt  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The commands that put something into the prompt of a chat, what becomes
;; of it when it is sent, and completion.

;;; Code:

(require 'qwen-companion-chat-test-helper)
(require 'qwen-companion-chat-send)
(require 'dired)
(require 'flymake)

(defmacro qwen-companion-chat-send-test-with (files &rest body)
  "Run BODY in the chat of a daemon in the workspace of a project with FILES.
It is the value of `default-directory' there."
  (declare (indent 1) (debug t))
  `(qwen-companion-chat-test-with
     (pcase-dolist (`(,name ,text) ,files)
       (make-directory (file-name-directory (expand-file-name name)) t)
       (write-region text nil name nil 'silent))
     (qwen-companion-chat-test-workspace (directory-file-name default-directory))
     ,@body))

(defun qwen-companion-chat-send-test--prompt ()
  "Return the prompt of the chat that is in the selected window."
  (with-current-buffer (window-buffer)
    (should (derived-mode-p 'qwen-companion-chat-mode))
    (should (eobp))
    (qwen-companion-chat-test-prompt)))

;;; Sending

(ert-deftest qwen-companion-chat-send-test-region ()
  "The text as it is in the buffer, with its lines; nothing is sent yet."
  (qwen-companion-chat-send-test-with '(("src/a.el" "one\n(two)\nthree\n"))
    (with-current-buffer (find-file-noselect "src/a.el")
      (qwen-companion-test-append "```\n")
      (narrow-to-region 5 (point-max))
      (qwen-companion-chat-send-region 5 11))
    (should (equal "src/a.el, line 2:\n```emacs-lisp\n(two)\n```\n"
                   (qwen-companion-chat-send-test--prompt)))
    (with-current-buffer (find-file-noselect "src/a.el")
      (qwen-companion-chat-send-region 5 (point-max)))
    (should (string-suffix-p
             "```\nsrc/a.el, lines 2-4:\n````emacs-lisp\n(two)\nthree\n```\n````\n"
             (qwen-companion-chat-send-test--prompt)))
    (should-not (qwen-companion-test-sent 'daemon-prompt))))

(ert-deftest qwen-companion-chat-send-test-inserting-keeps-the-prompt ()
  "Inserted text comes after the prompt, on a line of its own."
  (qwen-companion-chat-send-test-with nil
    (insert "Look:")
    (with-temp-buffer
      (rename-buffer "*notes*")
      (insert "x")
      (qwen-companion-chat-send-region))
    (should (equal "Look:\n*notes*:\n```\nx\n```\n" (qwen-companion-chat-send-test--prompt)))))

(ert-deftest qwen-companion-chat-send-test-buffer-says-that-it-is-not-saved ()
  (qwen-companion-chat-send-test-with '(("a.txt" "one\n"))
    (with-current-buffer (find-file-noselect "a.txt")
      (insert "zero\n")
      (narrow-to-region 1 2)
      (qwen-companion-chat-send-region)
      (should (equal "a.txt (not saved):\n```\nzero\none\n```\n" (qwen-companion-chat-send-test--prompt))))
    (with-current-buffer "a.txt"
      (qwen-companion-test-said "unsaved text"
        (call-interactively #'qwen-companion-chat-send-file)))))

(ert-deftest qwen-companion-chat-send-test-nothing-to-send ()
  (qwen-companion-chat-send-test-with nil
    (with-temp-buffer
      (should-error (qwen-companion-chat-send-region) :type 'user-error)
      (should-error (qwen-companion-chat-send-region 1 1) :type 'user-error)
      (should-error (qwen-companion-chat-send-problems 1 1) :type 'user-error))
    (should-error (qwen-companion-chat-send-region) :type 'user-error))
  (with-temp-buffer
    (insert "x")
    (qwen-companion-test-refused "No chat" (qwen-companion-chat-send-region))))

(ert-deftest qwen-companion-chat-send-test-the-region-is-active-until-it-is-sent ()
  "Otherwise a second try would send the whole buffer."
  (let ((transient-mark-mode t))
    (with-temp-buffer
      (insert "x\ny\n")
      (push-mark 1 t t)
      (goto-char 3)
      (qwen-companion-test-refused "No chat" (call-interactively #'qwen-companion-chat-send-region))
      (should (region-active-p))
      (let ((source (current-buffer)))
        (qwen-companion-chat-send-test-with nil
          (with-current-buffer source
            (call-interactively #'qwen-companion-chat-send-region)
            (should-not (region-active-p))))))))

(ert-deftest qwen-companion-chat-send-test-the-chat-is-chosen ()
  "The one used last, or with a prefix argument one that the user names."
  (qwen-companion-chat-send-test-with nil
    (let ((first (current-buffer)))
      (qwen-companion-chat t)
      (let ((second (current-buffer)))
        (with-temp-buffer
          (insert "x")
          (qwen-companion-chat-send-region)
          (should (eq second (window-buffer))))
        (with-temp-buffer
          (insert "x")
          (qwen-companion-test-choosing (lambda (&rest _) (buffer-name first))
            (let ((current-prefix-arg '(4)))
              (qwen-companion-chat-send-region)))
          (should (eq first (window-buffer))))))))

(ert-deftest qwen-companion-chat-send-test-file-has-a-link ()
  "A file is named in the prompt, and a link goes with that when it is sent."
  (qwen-companion-chat-send-test-with '(("src/a b.el" "one\n"))
    (let ((file (expand-file-name "src/a b.el")))
      (qwen-companion-chat-send-file file)
      (should (equal "@src/a\\ b.el " (qwen-companion-chat-send-test--prompt)))
      (insert "and what is it?")
      (qwen-companion-chat-send)
      (qwen-companion-chat-test-reply 'daemon-prompt :turn "t1")
      (should (equal `((:kind text :text "@src/a\\ b.el and what is it?")
                       (:kind text :text "\n")
                       (:kind link :path ,file))
                     (plist-get (car (qwen-companion-test-sent 'daemon-prompt)) :parts))))))

(defun qwen-companion-chat-send-test--parts (text)
  "Return the text that is sent for the prompt TEXT."
  (qwen-companion-chat-send--parts text))

(defun qwen-companion-chat-send-test--references (text)
  "Return the parts but text that are sent for the prompt TEXT."
  (cl-remove 'text (qwen-companion-chat-send-test--parts text)
             :key (lambda (part) (plist-get part :kind))))

(ert-deftest qwen-companion-chat-send-test-other-names-are-no-links ()
  "Names without a file, email addresses and quoted names stay text."
  (qwen-companion-chat-send-test-with '(("a" "") ("b" ""))
    (dolist (text '("me@a is @nobody" "no @" "```\n@a\n```" "````\n```\n@a" "`@a`"))
      (should (equal (list (list :kind 'text :text text))
                     (qwen-companion-chat-send-test--parts text))))
    (should (equal `((:kind text :text "```\n@a\n```\n@b @a @b")
                     (:kind text :text "\n")
                     (:kind link :path ,(expand-file-name "b"))
                     (:kind text :text "\n")
                     (:kind link :path ,(expand-file-name "a")))
                   (qwen-companion-chat-send-test--parts "```\n@a\n```\n@b @a @b")))))

(ert-deftest qwen-companion-chat-send-test-files-outside-the-workspace-are-no-links ()
  "The name of a file that is not in the workspace stays, and that is said."
  (qwen-companion-chat-send-test-with '(("project/a" "one\n") ("outside" "two\n"))
    (make-symbolic-link (expand-file-name "outside") "project/inside")
    (make-symbolic-link (expand-file-name "project") "elsewhere")
    (qwen-companion-chat-test-workspace (expand-file-name "project"))
    (dolist (name '("outside" "project/inside"))
      (let ((text (concat "see @" (expand-file-name name))))
        (should (equal (list (list :kind 'text :text text))
                       (qwen-companion-chat-send-test--parts text))))
      (let ((file (expand-file-name name)))
        (qwen-companion-test-said (concat "only the name is sent: " (regexp-quote file))
          (qwen-companion-chat-send-file file))))
    (let ((file (expand-file-name "elsewhere/a")))
      (should (string-empty-p (qwen-companion-test-messages (qwen-companion-chat-send-file file))))
      (should (member (list :kind 'link :path file)
                      (qwen-companion-chat-send-test--parts (concat "@" file)))))))

(ert-deftest qwen-companion-chat-send-test-punctuation-after-a-name-is-not-in-it ()
  (qwen-companion-chat-send-test-with '(("a.el" "one\n") ("b" "two\n") ("b!" "three\n"))
    (pcase-dolist (`(,text . ,file) '(("what is @a.el?" . "a.el") ("(see @a.el)." . "a.el")
                                      ("@b, then" . "b") ("@b!" . "b!")))
      (should (equal `((:kind link :path ,(expand-file-name file)))
                     (qwen-companion-chat-send-test--references text))))
    (should-not (qwen-companion-chat-send-test--references "who is @?"))))

(ert-deftest qwen-companion-chat-send-test-images ()
  "The daemon reads those of its workspace; others are sent, by absolute names."
  (qwen-companion-chat-send-test-with '(("project/a.png" "") ("b c.PNG" "") ("text" ""))
    (qwen-companion-chat-test-workspace (expand-file-name "project"))
    (let ((image (expand-file-name "b c.PNG")))
      (should (equal `((:kind link :path ,(expand-file-name "project/a.png"))
                       (:kind image :path ,image))
                     (qwen-companion-chat-send-test--references
                      (format "@a.png @%s @../b\\ c.PNG @%s @%s.png @%s"
                              (qwen-companion-quote-escape image) (expand-file-name "text")
                              (expand-file-name "none") (qwen-companion-quote-escape image)))))
      ;; A daemon elsewhere has none of the files of this machine.
      (qwen-companion-chat-test-daemon :state 'connected :host "h:1" :workspace "/nowhere/project")
      (should (equal `((:kind image :path ,image))
                     (qwen-companion-chat-send-test--references
                      (concat "@a.png @" (qwen-companion-quote-escape image))))))))

(ert-deftest qwen-companion-chat-send-test-excluded-files-named-in-a-prompt ()
  "A text and an image that no CLI is told of go alike when the user names them."
  (qwen-companion-chat-send-test-with '(("project/notes.txt" "") ("b.png" ""))
    (qwen-companion-chat-test-workspace (expand-file-name "project"))
    (let* ((qwen-companion-excluded-files '("*.txt" "*.png"))
           (notes (expand-file-name "project/notes.txt"))
           (image (expand-file-name "b.png"))
           (buffer (find-file-noselect notes)))
      (unwind-protect
          (progn
            (qwen-companion-privacy-set-exposure buffer 'hide)
            (should (equal `((:kind link :path ,notes) (:kind image :path ,image))
                           (qwen-companion-chat-send-test--references
                            (concat "@notes.txt @" (qwen-companion-quote-escape image))))))
        (kill-buffer buffer)))))

(ert-deftest qwen-companion-chat-send-test-the-image-of-the-clipboard ()
  (qwen-companion-chat-send-test-with '(("project/a" ""))
    (qwen-companion-chat-test-workspace (expand-file-name "project"))
    (qwen-companion-test-refused "\\`No image in the clipboard\\'" (qwen-companion-chat-paste-image))
    (cl-letf (((symbol-function 'gui-get-selection)
               (lambda (_selection type) (and (eq type 'image/png) "\211PNG\r\n\0")))
              ((symbol-function 'qwen-companion-backend-spool) (lambda () default-directory)))
      (insert "look:")
      (goto-char (point-min))
      (call-interactively (key-binding (kbd "C-c C-y")))
      (let* ((parts (qwen-companion-chat-send-test--parts (qwen-companion-chat-send-test--prompt)))
             (file (plist-get (nth 2 parts) :path)))
        (should (eq 'image (plist-get (nth 2 parts) :kind)))
        (should (equal (format "look: @%s " (qwen-companion-quote-escape file))
                       (qwen-companion-chat-send-test--prompt)))
        (should (= #o600 (file-modes file)))
        (should (equal (string-to-unibyte "\211PNG\r\n\0")
                       (qwen-companion-test-file-bytes file)))))))

(ert-deftest qwen-companion-chat-send-test-files-of-another-machine ()
  "No remote file, and no file of a workspace with a remote name, is looked for."
  (qwen-companion-chat-send-test-with nil
    (qwen-companion-test-refused "another machine"
      (qwen-companion-chat-send-file "/ssh:nowhere.invalid:/a"))
    (qwen-companion-chat-test-daemon :state 'connected :host "h:1" :workspace "/ssh:nowhere.invalid:/project")
    (insert "@a")
    (should-not (run-hook-with-args-until-success 'completion-at-point-functions))
    (should (equal '((:kind text :text "@/ssh:nowhere.invalid:/a"))
                   (qwen-companion-chat-send-test--parts "@/ssh:nowhere.invalid:/a")))))

(ert-deftest qwen-companion-chat-send-test-marked-in-dired ()
  (qwen-companion-chat-send-test-with '(("d/a.txt" "") ("d/b.txt" "") ("d/c.txt" ""))
    (with-current-buffer (dired-noselect "d")
      (dolist (name '("a.txt" "c.txt"))
        (dired-goto-file (expand-file-name name))
        (dired-mark 1))
      (call-interactively #'qwen-companion-chat-send-file))
    (should (equal "@d/a.txt @d/c.txt " (qwen-companion-chat-send-test--prompt)))))

(ert-deftest qwen-companion-chat-send-test-flymake ()
  "The problems that Flymake has found in the region or everywhere."
  (qwen-companion-chat-send-test-with '(("a.txt" "one\ntwo\nthree\n"))
    (with-current-buffer (find-file-noselect "a.txt")
      (let ((buffer (current-buffer)))
        (add-hook 'flymake-diagnostic-functions
                  (lambda (report &rest _)
                    (funcall report
                             (list (flymake-make-diagnostic buffer 5 8 :warning "odd\nword")
                                   (flymake-make-diagnostic buffer 1 4 :error "no"))))
                  nil t)
        (flymake-mode 1)
        (qwen-companion-test-refused "No problems" (qwen-companion-chat-send-problems 1 15))
        (flymake-start)
        (should-error (qwen-companion-chat-send-problems 9 15) :type 'user-error)
        (qwen-companion-chat-send-problems (point-min) (point-max)))
      (flymake-mode -1))
    (should (equal "a.txt:1:1: error: no\na.txt:2:1: warning: odd word\n"
                   (qwen-companion-chat-send-test--prompt)))))

;;; Completion

(defun qwen-companion-chat-send-test--complete (text)
  "Return the completions at the end of TEXT, in the prompt."
  (qwen-companion-chat-test-type text)
  (goto-char (point-max))
  (pcase (run-hook-with-args-until-success 'completion-at-point-functions)
    (`(,start ,end ,table . ,_)
     (sort (all-completions (buffer-substring start end) table) #'string<))))

(ert-deftest qwen-companion-chat-send-test-completes-files ()
  "Files of the daemon's workspace, in a chat with any directory."
  (qwen-companion-chat-send-test-with '(("src/alpha.el" "") ("src/beta.el" ""))
    (let ((default-directory "/"))
      (should (equal '("src/") (qwen-companion-chat-send-test--complete "look at @sr")))
      (should (equal '("alpha.el") (qwen-companion-chat-send-test--complete "@src/al")))
      (should-not (qwen-companion-chat-send-test--complete "me@src/al"))
      (should-not (qwen-companion-chat-send-test--complete "src/al"))
      (qwen-companion-chat-test-say "@sr")
      (qwen-companion-test-go-to "@sr")
      (should-not (run-hook-with-args-until-success 'completion-at-point-functions))
      (qwen-companion-chat-test-type "see @src/b")
      (goto-char (point-max))
      (call-interactively (key-binding (kbd "M-TAB")))
      (should (equal "see @src/beta.el" (qwen-companion-chat-test-prompt))))))

(ert-deftest qwen-companion-chat-send-test-completes-files-of-a-project-by-any-part ()
  "In a project, its files by any part of their names; ignored ones after `./'."
  (qwen-companion-chat-send-test-with
      '((".gitignore" "built\n") ("lib/deep/tool.el" "") ("my dir/one two" "") ("built" "")
        ("odd\nname" ""))
    (call-process "git" nil nil nil "init" "-q")
    (let ((default-directory "/")
          (complete (lambda (text)
                      (qwen-companion-chat-test-type text)
                      (goto-char (point-max))
                      (completion-at-point)
                      (qwen-companion-chat-test-prompt))))
      (should (equal '(".gitignore" "lib/deep/tool.el" "my\\ dir/one\\ two")
                     (qwen-companion-chat-send-test--complete "@")))
      (should (equal "see @lib/deep/tool.el" (funcall complete "see @tool")))
      (should (equal "(@lib/deep/tool.el" (funcall complete "(@deep")))
      (should (equal "@my\\ dir/one\\ two" (funcall complete "@one\\ t")))
      (should (equal "@./built" (funcall complete "@./bui")))
      (should (equal '(".gitignore" "built" "lib/" "my\\ dir/")
                     (qwen-companion-chat-send-test--complete "@./")))
      ;; The style is the user's, as for `project-find-file'.
      (let ((completion-category-defaults nil)
            (completion-category-overrides '((project-file (styles basic)))))
        (should (equal "@tool" (funcall complete "@tool")))
        (should (equal "@lib/deep/tool.el" (funcall complete "@lib")))))
    ;; A workspace may be a part of a project.
    (qwen-companion-chat-test-workspace (expand-file-name "lib"))
    (should (equal '("deep/tool.el") (qwen-companion-chat-send-test--complete "@")))))

(ert-deftest qwen-companion-chat-send-test-completes-names-with-blanks ()
  "They are written as they have to be, of files and directories alike.
One with a line end cannot be written."
  (qwen-companion-chat-send-test-with
      '(("my dir/one two" "") ("my dir/one\nthree" "") ("my dir/one\\four" "") ("my @dir/x" ""))
    (should (equal '("my\\ @dir/" "my\\ dir/") (qwen-companion-chat-send-test--complete "@my")))
    (should (equal '("my\\ dir/") (qwen-companion-chat-send-test--complete "so @my\\ d")))
    (should (equal '("one\\ two" "one\\\\four")
                   (qwen-companion-chat-send-test--complete "@my\\ dir/o")))
    (should (equal '("x") (qwen-companion-chat-send-test--complete "@my\\ @dir/x")))
    (should (equal '("my\\ dir/") (qwen-companion-chat-send-test--complete "@a @my\\ d")))
    ;; The blank ends the name, or is not all written yet.
    (should-not (qwen-companion-chat-send-test--complete "@my d"))
    (should-not (qwen-companion-chat-send-test--complete "@my\\"))
    (pcase-dolist (`(,typed ,completed) '(("see @my\\ d" "see @my\\ dir/")
                                          ("see @my\\ dir/one\\ " "see @my\\ dir/one\\ two")
                                          ("@my\\ dir/one\\\\" "@my\\ dir/one\\\\four")))
      (qwen-companion-chat-test-type typed)
      (goto-char (point-max))
      (completion-at-point)
      (should (equal completed (qwen-companion-chat-test-prompt)))
      (should (= (point) (point-max))))
    (should (equal (expand-file-name "my dir/one\\four")
                   (plist-get (nth 2 (qwen-companion-chat-send-test--parts (qwen-companion-chat-test-prompt))) :path)))))

(ert-deftest qwen-companion-chat-send-test-completes-on-this-machine-only ()
  (qwen-companion-chat-send-test-with nil
    (let* ((handled nil)
           (file-name-handler-alist
            (cons (cons "\\`/ssh:" (lambda (operation &rest _)
                                    (setq handled operation)
                                    nil))
                  file-name-handler-alist)))
      (should-not (qwen-companion-chat-send-test--complete "@/ssh:nowhere.invalid:/a"))
      (should-not handled))))

(ert-deftest qwen-companion-chat-send-test-completes-commands ()
  "Commands are completed at the beginning of the prompt only, with descriptions."
  (qwen-companion-chat-send-test-with nil
    (qwen-companion-chat-test-tell
     'daemon-commands :session "s"
     :commands '((:name "status" :description "show version info" :hint "")
                 (:name "stats" :description "" :hint "")
                 (:name "review" :description "look" :hint "[file]")))
    (should (equal '("stats" "status") (qwen-companion-chat-send-test--complete "/sta")))
    (should-not (qwen-companion-chat-send-test--complete "what is /sta"))
    (should-not (qwen-companion-chat-send-test--complete "/status sta"))
    (qwen-companion-chat-test-type "/")
    (goto-char (point-max))
    (let ((annotate (plist-get (nthcdr 3 (run-hook-with-args-until-success 'completion-at-point-functions))
                               :annotation-function)))
      (should (equal "  [file]  look" (funcall annotate "review")))
      (should (equal "" (funcall annotate "stats"))))))

(ert-deftest qwen-companion-chat-send-test-completes-with-keys ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-tell 'daemon-commands :session "s" :commands '((:name "compress")))
    (dolist (key '("TAB" "C-M-i"))
      (qwen-companion-chat-test-type "")
      (goto-char (point-max))
      (execute-kbd-macro (kbd (concat "/ c o m p " key)))
      (should (equal "/compress" (qwen-companion-chat-test-prompt))))))

(ert-deftest qwen-companion-chat-send-test-kept-until-the-session-is-there ()
  "A prompt is sent once, in order, when the session can take it."
  (qwen-companion-chat-test-with
    (let ((send (lambda (text)
                  (qwen-companion-test-append text)
                  (qwen-companion-chat-send)))
          (sent (lambda ()
                  (mapcar (lambda (payload) (plist-get (car (plist-get payload :parts)) :text))
                          (qwen-companion-test-sent 'daemon-prompt)))))
      (qwen-companion-chat t)
      (funcall send "first")
      (funcall send "second")
      (should-not (funcall sent))
      (should (equal "" (qwen-companion-chat-test-prompt)))
      (should-not (qwen-companion-chat-send-empty-p))
      (should (qwen-companion-test-header-p "2 prompts are sent once the session is there"))
      ;; Why it takes long is said.
      (qwen-companion-chat-test-daemon :state 'connected :text "The agent takes long.")
      (should (string-match-p "The agent takes long" (qwen-companion-test-header)))
      (qwen-companion-chat-test-reply 'daemon-open :session "n")
      (should-not (funcall sent))
      (qwen-companion-chat-test-tell 'daemon-session :session "n" :state 'idle)
      (should (equal '("first" "second") (funcall sent)))
      ;; So it is while the connection is lost; until then it can be taken back.
      (qwen-companion-chat-test-tell 'daemon-session :session "n" :state 'disconnected)
      (funcall send "third")
      (qwen-companion-chat-cancel)
      (should (equal "third" (string-trim (qwen-companion-chat-test-prompt))))
      (qwen-companion-chat-send)
      (qwen-companion-chat-test-tell 'daemon-session :session "n" :state 'idle)
      (should (equal '("first" "second" "third") (funcall sent)))
      ;; It comes back when there is no session any more.
      (qwen-companion-chat-test-tell 'daemon-session :session "n" :state 'disconnected)
      (funcall send "fourth")
      (qwen-companion-chat-test-tell 'daemon-session :session "n" :state 'dead :text "Gone.")
      (should (equal "fourth" (string-trim (qwen-companion-chat-test-prompt))))
      (should (= 3 (length (funcall sent)))))))

(ert-deftest qwen-companion-chat-send-test-clear-begins-a-new-chat ()
  "The daemon would end the session; the old chat stays as it is."
  (qwen-companion-chat-test-with
    (let ((old (current-buffer)))
      (qwen-companion-chat-test-tell
       'daemon-commands :session "s"
       :commands '((:name "clear" :description "Clear conversation history") (:name "init")))
      (should (equal "  begin a new chat; this one stays"
                     (substring-no-properties
                      (qwen-companion-chat-send--annotation (car qwen-companion-chat-send--commands)))))
      (qwen-companion-chat-test-say "Before.")
      (qwen-companion-test-append "/clear ")
      (qwen-companion-test-said "the old one is in \\*qwen chat\\*" (qwen-companion-chat-send))
      (should-not (qwen-companion-test-sent 'daemon-prompt))
      (should-not (eq old (window-buffer)))
      (should (= 2 (length (qwen-companion-test-sent 'daemon-open))))
      (with-current-buffer old
        (should (string-match-p "Before\\." (qwen-companion-chat-test-conversation)))
        (qwen-companion-test-append "/clear the table")
        (qwen-companion-chat-send))
      (should (= 1 (length (qwen-companion-test-sent 'daemon-prompt)))))))

(ert-deftest qwen-companion-chat-send-test-queued-prompt-comes-back ()
  "A prompt in the daemon's queue is seen, and taken out of it."
  (qwen-companion-chat-test-with
    (should-error (call-interactively #'qwen-companion-chat-remove-queued) :type 'user-error)
    (qwen-companion-chat-test-session :state 'busy :queue '((:turn "t2" :text "then this" :by me)))
    (should (string-search "then this" (get-text-property
                                        (string-search "1 queued" (qwen-companion-test-header))
                                        'help-echo (qwen-companion-test-header))))
    (call-interactively #'qwen-companion-chat-remove-queued)
    (should (equal "t2" (plist-get (car (qwen-companion-test-sent 'daemon-remove-prompt)) :turn)))
    (qwen-companion-chat-test-reply 'daemon-remove-prompt)
    (should (equal "then this" (string-trim (qwen-companion-chat-test-prompt))))))

(ert-deftest qwen-companion-chat-send-test-a-prompt-lost-with-the-queue-comes-back ()
  "A long prompt that is taken out of the queue comes back whole."
  (qwen-companion-chat-test-with
    (dolist (turn '("t1" "t2" "t3"))
      (insert (format "first %s\nand more" turn))
      (qwen-companion-chat-send)
      (qwen-companion-chat-test-reply 'daemon-prompt :turn turn))
    (qwen-companion-chat-test-turn '(:kind end :turn "t1" :outcome done))
    (qwen-companion-chat-test-session :state 'busy :queue '((:turn "t2" :text "first t2" :by me)))
    (call-interactively #'qwen-companion-chat-remove-queued)
    (qwen-companion-chat-test-reply 'daemon-remove-prompt)
    (should (equal "first t2\nand more" (string-trim (qwen-companion-chat-test-prompt))))
    (qwen-companion-chat-test-type "a draft")
    (qwen-companion-chat-test-turn
     '(:kind end :turn "t1" :outcome lost :text "first t1 and more")
     '(:kind end :turn "t2" :outcome removed :text "first t2 and more")
     '(:kind end :turn "t3" :outcome lost :text "first t3 and more"))
    (should (equal (concat "Lost with the queue: first t1 and more\n"
                           "Removed from the queue: first t2 and more\n"
                           "Lost with the queue, and in the input again: first t3 and more\n")
                   (qwen-companion-chat-test-conversation)))
    (should (equal "first t3\nand more\na draft" (qwen-companion-chat-test-prompt)))))

(ert-deftest qwen-companion-chat-send-test-shows-the-use-of-the-context ()
  (qwen-companion-chat-test-with
    (call-interactively #'qwen-companion-chat-show-usage)
    (should (equal "s" (plist-get (car (qwen-companion-test-sent 'daemon-usage)) :session)))
    (save-window-excursion
      (qwen-companion-chat-test-tell 'daemon-usage :session "s" :text "Tools: 5k")
      (with-current-buffer "*qwen-companion chat: context*"
        (should (equal "Tools: 5k" (buffer-string)))
        (kill-buffer)))))

(provide 'qwen-companion-chat-send-test)
;;; qwen-companion-chat-send-test.el ends here
