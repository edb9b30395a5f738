;;; qwen-companion-chat-tools-test.el --- Tests of tools in a chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What a chat shows of the tools that a model uses, and of its plan.

;;; Code:

(require 'qwen-companion-chat-test-helper)

(defun qwen-companion-chat-tools-test--push (text)
  "Push the button TEXT of the conversation."
  (goto-char (point-min))
  (search-forward text)
  (call-interactively (lookup-key (get-text-property (1- (point)) 'keymap) (kbd "RET"))))

(defconst qwen-companion-chat-tools-test--shell
  '(:kind tool :turn "t1" :id "x" :status done :name "run_shell_command" :title "List the files"
          :type "execute" :started 1000 :ended 3400 :command "ls -l" :input "{}"
          :output "a\nb\n" :output-more 1000000 :places ((:path "/project/a" :line 3)))
  "A tool that has given more than is told.")

(ert-deftest qwen-companion-chat-tools-test-one-line-and-a-fold ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn qwen-companion-chat-tools-test--shell)
    (should (equal (concat "done      List the files  2.4 s\n"
                           "Tool: run_shell_command (execute)\n"
                           "Command:\nls -l\n"
                           "File: /project/a:3\n"
                           "Output:\na\nb\n"
                           "1000000 more characters; show all\n")
                   (qwen-companion-chat-test-conversation)))
    (goto-char (point-min))
    (should-not (invisible-p (1- (line-end-position))))
    (forward-line)
    (while (< (point) (1- qwen-companion-chat--end))
      (should (invisible-p (point)))
      (forward-char))
    ;; The end of the last line is that of what is seen.
    (should-not (invisible-p (point)))))

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
    (goto-char (point-min))
    (search-forward "it\n")
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
      (let ((file (qwen-companion-backend-spool-text text 'utf-8-unix)))
        (qwen-companion-chat-test-tell
         'daemon-text :session "s" :tool "x" :part 'output :index 0 :text-file file)
        (should-not (file-exists-p file)))
      (should (eq chat (current-buffer)))
      (should (equal before (qwen-companion-chat-test-conversation)))
      (with-current-buffer "*qwen-companion chat: output of List the files*"
        (should (equal text (buffer-string)))
        (should buffer-read-only)
        (should (get-buffer-window))))))

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
      (cl-letf (((symbol-function 'qwen-companion-chat-changes-show)
                 (lambda (tool diffs)
                   (push (list (plist-get tool :id) (plist-get (car diffs) :index)) shown))))
        (qwen-companion-chat-tools-test--push "/project/old"))
      (should (equal '(("x" 1)) shown)))))

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

(provide 'qwen-companion-chat-tools-test)
;;; qwen-companion-chat-tools-test.el ends here
