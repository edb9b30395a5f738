;;; qwen-companion-chat-tools-test.el --- Tests of tools in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What a chat shows of the tools that a model uses, and of its plan.

;;; Code:

(require 'qwen-companion-chat-test-helper)

(defun qwen-companion-chat-tools-test--push (text)
  "Push the button TEXT of the conversation."
  (qwen-companion-test-go-to text)
  (call-interactively (lookup-key (get-text-property (1- (point)) 'keymap) (kbd "RET"))))

(defconst qwen-companion-chat-tools-test--shell
  '(:kind tool :turn "t1" :id "x" :status done :name "run_shell_command" :title "List the files"
          :type "execute" :started 1000 :ended 3400 :command "ls -l" :input "{}"
          :output "a\nb\n" :output-more 1000000 :places ((:path "/project/a" :line 3)))
  "A tool that has given more than is told.")

(ert-deftest qwen-companion-chat-tools-test-one-line-and-a-fold ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn qwen-companion-chat-tools-test--shell)
    (should (equal (concat "done      List the files  (2.4 s)\n"
                           "Tool: run_shell_command (execute)\n"
                           "Command:\nls -l\n"
                           "File: /project/a:3\n"
                           "Output:\na\nb\n"
                           "1000000 more characters; show all\n")
                   (qwen-companion-chat-test-conversation)))
    (goto-char (point-min))
    (should-not (invisible-p (1- (line-end-position))))
    (forward-line)
    (while (< (point) (1- qwen-companion-chat-blocks-conversation-end))
      (should (invisible-p (point)))
      (forward-char))
    ;; The end of the last line is that of what is seen.
    (should-not (invisible-p (point)))))

(ert-deftest qwen-companion-chat-tools-test-nested-parts-are-opened-with-the-mouse ()
  "It is set off from the conversation, in an agent's text too."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     '(:kind tool :turn "t1" :id "agent" :status running :title "Agent" :name "agent")
     (append '(:parent "agent") qwen-companion-chat-tools-test--shell))
    (qwen-companion-test-go-to "List")
    (should (get-text-property (point) 'mouse-face))
    (should (equal "  " (get-text-property (point) 'line-prefix)))
    (let ((here (point))
          (map (get-text-property (point) 'keymap)))
      (search-forward "run_shell")
      (should (equal "      " (get-text-property (point) 'line-prefix)))
      (should (invisible-p (point)))
      (goto-char (point-max))
      (cl-letf (((symbol-function 'posn-set-point) (lambda (position) (goto-char position)))
                ((symbol-function 'event-end) (lambda (_) here))
                ((symbol-function 'mouse-event-p) #'always))
        (funcall-interactively (lookup-key map [mouse-2]) '(mouse-2)))
      (goto-char here)
      (search-forward "run_shell")
      (should-not (invisible-p (point))))))

(ert-deftest qwen-companion-chat-tools-test-nothing-to-fold ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn '(:kind tool :turn "t1" :id "x" :status preparing :title "Read"))
    (goto-char (point-min))
    (should-error (qwen-companion-chat-toggle-fold) :type 'user-error)
    (qwen-companion-chat-test-turn
     '(:kind tool :turn "t1" :id "x" :status running :title "Read" :name "read_file"))
    (qwen-companion-chat-toggle-fold)
    (qwen-companion-chat-test-turn
     '(:kind tool :turn "t1" :id "x" :status done :title "Read" :name "read_file" :output "it"))
    (qwen-companion-test-go-to "it\n")
    (should-not (invisible-p (1- (point))))))

(ert-deftest qwen-companion-chat-tools-test-the-whole-output-in-a-buffer ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn qwen-companion-chat-tools-test--shell)
    (let ((before (qwen-companion-chat-test-conversation))
          (chat (current-buffer))
          (text (apply #'concat (make-list 20000 "fifty characters and a newline make a line of it.\n"))))
      (qwen-companion-chat-tools-test--push "show all")
      (should (equal '("x" output 0)
                     (let ((call (car (qwen-companion-test-sent 'daemon-fetch))))
                       (mapcar (lambda (key) (plist-get call key)) '(:tool :part :index)))))
      (let ((file (qwen-companion-spool-write text 'utf-8-unix)))
        (qwen-companion-chat-test-tell
         'daemon-text :session "s" :tool "x" :part 'output :index 0 :text-file file)
        (should-not (file-exists-p file)))
      (should (eq chat (current-buffer)))
      (should (equal before (qwen-companion-chat-test-conversation)))
      (with-current-buffer "*qwen-companion chat: output of List the files*"
        (should (equal text (buffer-string)))
        (should buffer-read-only)
        (should (get-buffer-window))))))

(ert-deftest qwen-companion-chat-tools-test-the-whole-of-a-long-line ()
  "Emacs is not kept busy by it; and it is copied as it was."
  (qwen-companion-chat-test-with
    (dolist (text (list (make-string 1000 ?a)
                        (concat (make-string 1000 ?a) "\n" (make-string 1000 ?b) "\n\nc")))
      (with-selected-window (qwen-companion-chat-tools--view "*whole*" text)
        (should (equal text (buffer-string)))
        (kill-buffer)))
    (let ((text (concat "one\n" (make-string 2500 ?a) "\n\n" (make-string 1001 ?b))))
      (with-selected-window (qwen-companion-chat-tools--view "*whole*" text)
        (should (equal '(3 1000 1000 500 0 1000 1)
                       (mapcar #'length (split-string (buffer-string) "\n"))))
        (should (string-match-p "broken" header-line-format))
        (copy-region-as-kill (point-min) (point-max))
        (should (equal-including-properties text (current-kill 0)))
        (kill-buffer)))))

(ert-deftest qwen-companion-chat-tools-test-a-fetch-that-fails ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn qwen-companion-chat-tools-test--shell)
    (qwen-companion-chat-tools-test--push "show all")
    (should (equal "qwen-companion: It is gone."
                   (qwen-companion-test-messages
                     (qwen-companion-chat-test-reply 'daemon-fetch :error "It is gone." :problem 'gone))))
    (should-not qwen-companion-chat-tools--fetches)))

(ert-deftest qwen-companion-chat-tools-test-changes-of-files ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     '(:kind tool :turn "t1" :id "x" :status done :title "Edit"
             :diffs ((:index 0 :path "/project/new" :new-size 5)
                     (:index 1 :path "/project/old" :old-size 7 :new-size 9)
                     (:index 2 :path "/project/any" :old-size 0 :new-size 9))
             :diffs-more 30 :places ((:path "/project/new")) :places-more 10))
    (should (string-match-p (concat "Change: /project/new  a new file of 5 characters\n"
                                    "Change: /project/old  7 to 9 characters\n"
                                    "Change: /project/any  9 characters; the file is new or was empty\n"
                                    "30 more changes that cannot be shown here\n"
                                    "File: /project/new\n10 more files\n")
                            (qwen-companion-chat-test-conversation)))
    (let (shown)
      (cl-letf (((symbol-function 'qwen-companion-chat-tools-show-changes)
                 (lambda (tool diffs)
                   (push (list (plist-get tool :id) (plist-get (car diffs) :index)) shown))))
        (qwen-companion-chat-tools-test--push "/project/old"))
      (should (equal '(("x" 1)) shown)))))

;;; Files of tools

(defun qwen-companion-chat-tools-test--place (path &optional line)
  "Let the Python process tell a tool with a place in PATH, at LINE."
  (qwen-companion-chat-test-turn
   (list :kind 'tool :turn "t1" :id "x" :status 'done :title "Read"
         :places (list (list :path path :line line)))))

(defun qwen-companion-chat-tools-test--place-button-p ()
  "Return non-nil when the place that is shown can be followed."
  (qwen-companion-test-go-to "File: ")
  (get-text-property (point) 'mouse-face))

(ert-deftest qwen-companion-chat-tools-test-a-file-is-visited-at-its-line ()
  "It is shown in another window; a narrowing is kept if the line is inside."
  (qwen-companion-chat-test-with
    (let ((file (expand-file-name "a.txt"))
          (chat (current-buffer)))
      (write-region "one\ntwo\nthree\n" nil file nil 'silent)
      (qwen-companion-chat-tools-test--place file 3)
      (should (string-match-p (concat "^File: " file ":3$")
                              (qwen-companion-chat-test-conversation)))
      (qwen-companion-chat-tools-test--push file)
      (should (equal file (buffer-file-name (window-buffer))))
      (should (looking-at "three"))
      (should (get-buffer-window chat))
      ;; Without a line, point stays.
      (pcase-dolist (`(,line ,there ,narrowed) '((2 2 t) (3 3 nil) (nil 3 nil)))
        (when line
          (narrow-to-region 1 8))
        (select-window (get-buffer-window chat))
        (qwen-companion-chat-tools-test--place file line)
        (qwen-companion-chat-tools-test--push file)
        (should (equal file (buffer-file-name (window-buffer))))
        (should (= there (line-number-at-pos nil t)))
        (should (eq narrowed (buffer-narrowed-p)))))))

(ert-deftest qwen-companion-chat-tools-test-files-that-are-not-followed ()
  "Missing, special and relative names, and names for a handler, are not followed."
  (qwen-companion-chat-test-with
    (let* ((handled nil)
           (fifo (expand-file-name "fifo"))
           (handler (lambda (operation &rest _) (setq handled operation)))
           ;; As Tramp has one for names that are not all typed.
           (partly (make-symbol "partly")))
      (fset partly handler)
      (put partly 'operations '(file-directory-p file-regular-p))
      (write-region "" nil "a.txt" nil 'silent)
      (write-region "" nil "a.gz" nil 'silent)
      (call-process "mkfifo" nil nil nil fifo)
      (let ((file-name-handler-alist
             `(("\\`/ssh:[^:]*:" . ,handler) ("\\`/ssh:[^:]*\\'" . ,partly)
               ,@file-name-handler-alist)))
        (dolist (path (list (expand-file-name "none") fifo (expand-file-name "a.gz")
                            "a.txt" "~" "" "/ssh:nowhere.invalid:/a"
                            "/ssh:nowhere.invalid"
                            "/x/../ssh:nowhere.invalid:/a" "/:/"))
          (qwen-companion-chat-tools-test--place path 1)
          (should-not (qwen-companion-chat-tools-test--place-button-p))))
      (should-not handled)
      ;; Nor one that goes meanwhile, nor one of a daemon that may be elsewhere.
      (let ((file (expand-file-name "a.txt")))
        (qwen-companion-chat-tools-test--place file 1)
        (should (qwen-companion-chat-tools-test--place-button-p))
        (delete-file file)
        (qwen-companion-test-refused "no longer exists" (qwen-companion-chat-tools-test--push file))
        (should-not (find-buffer-visiting file))
        (write-region "one\n" nil file nil 'silent)
        (qwen-companion-chat-test-daemon :state 'connected :host "127.0.0.1:4170" :workspace "/project")
        (qwen-companion-chat-tools-test--place file 1)
        (should-not (qwen-companion-chat-tools-test--place-button-p))))))

(ert-deftest qwen-companion-chat-tools-test-a-button-is-clicked-from-another-window ()
  "It is about the chat in the window that was clicked."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn qwen-companion-chat-tools-test--shell)
    (qwen-companion-test-go-to "show all")
    (let* ((window (selected-window))
           (position (1- (point)))
           (last-nonmenu-event `(mouse-2 (,window ,position (0 . 0) 0)))
           (act (lookup-key (get-text-property position 'keymap) [mouse-2])))
      (select-window (split-window))
      (switch-to-buffer "*scratch*")
      (call-interactively act)
      (should (eq window (selected-window)))
      (should (= position (point))))
    (should (equal "s" (plist-get (car (qwen-companion-test-sent 'daemon-fetch)) :session)))))

(ert-deftest qwen-companion-chat-tools-test-a-plan-in-place ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     '(:kind plan :turn "t1" :steps ((:text "Read" :status running) (:text "Write\nit" :status pending)))
     (qwen-companion-chat-test-text 'answer "So."))
    (qwen-companion-chat-test-turn
     '(:kind plan :turn "t1" :steps ((:text "Read" :status done) (:text "Write\nit" :status running)
                                     (:text "Test" :status pending))))
    (should (equal "Plan\n[x] Read\n[-] Write it\n[ ] Test\n\nSo.\n"
                   (qwen-companion-chat-test-conversation)))))

(ert-deftest qwen-companion-chat-tools-test-all-are-opened-and-folded ()
  "Where some are open, the others are opened; that outlives reading again."
  (qwen-companion-chat-test-with
    (goto-char (point-min))
    (should-error (qwen-companion-chat-toggle-all-folds) :type 'user-error)
    (let ((tools (mapcar (lambda (id) (list :kind 'tool :turn "t1" :id id :status 'done
                                            :title id :output "a\nb\n"))
                         '("c1" "c2")))
          (shown (lambda ()
                   (mapcar (lambda (id)
                             (eq 'open (qwen-companion-chat-block-fold
                                        (qwen-companion-chat-blocks-get (list 'tool id)))))
                           '("c1" "c2")))))
      (apply #'qwen-companion-chat-test-turn tools)
      (qwen-companion-test-go-to "c1")
      (qwen-companion-chat-toggle-fold)
      (should (equal '(t nil) (funcall shown)))
      (call-interactively (key-binding (kbd "<backtab>")))
      (should (equal '(t t) (funcall shown)))
      (search-forward "b")
      (call-interactively (key-binding (kbd "<backtab>")))
      (should (equal '(nil nil) (funcall shown)))
      (should-not (invisible-p (point)))
      (call-interactively (key-binding (kbd "<backtab>")))
      (qwen-companion-chat-test-tell 'daemon-reset :session "s" :batches 1)
      (apply #'qwen-companion-chat-test-turn tools)
      (should (equal '(t t) (funcall shown))))))

(ert-deftest qwen-companion-chat-tools-test-many-cost-no-markers ()
  "Emacs looks at all markers and overlays of a buffer with each change."
  (qwen-companion-chat-test-with
    (dolist (status '(running done))
      (dotimes (index 50)
        (qwen-companion-chat-test-turn (list :kind 'tool :turn "t1" :id (format "c%d" index)
                                             :status status :title "Run" :output "a\nb\n"))))
    (should-not (overlays-in (point-min) qwen-companion-chat-blocks-conversation-end))
    (let ((blocks (qwen-companion-chat-blocks-list))
          (end (point-min)))
      (should (= 50 (length blocks)))
      (dolist (block blocks)
        (should (integerp (qwen-companion-chat-block-start block)))
        (should (= end (qwen-companion-chat-block-start block)))
        (setq end (qwen-companion-chat-block-end block))
        (should (integerp end)))
      (should (= end qwen-companion-chat-blocks-conversation-end)))))

(provide 'qwen-companion-chat-tools-test)
;;; qwen-companion-chat-tools-test.el ends here
