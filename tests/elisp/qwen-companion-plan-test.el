;;; qwen-companion-plan-test.el --- Tests of plans and questions  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion-test-helper)

(defconst qwen-companion-plan-test--text "# Fruit\n\n1. Buy plums.\n2. Bake.\n")

(defmacro qwen-companion-plan-test-with (&rest body)
  "Run BODY in a project with a connected companion, in an orderly frame."
  (declare (indent 0) (debug t))
  `(qwen-companion-test-with-reviews '(("a.txt" "1\n"))
     (qwen-companion-test-with-state 'ready
       ,@body)))

(defun qwen-companion-plan-test--propose (text &rest more)
  "Let a CLI ask to approve the plan TEXT; return the proposal.
MORE are further keys and values of the payload."
  (apply #'qwen-companion-test-propose "plans/1.md" text
         (append (list :held t :kind 'plan :directory (directory-file-name default-directory))
                 more)))

(defun qwen-companion-plan-test--review (text &rest more)
  "Let a CLI ask to approve the plan TEXT, and go to it; return the proposal.
MORE are further keys and values of the payload."
  (prog1 (apply #'qwen-companion-plan-test--propose text more)
    (qwen-companion-review)))

(defun qwen-companion-plan-test--ask (&rest questions)
  "Let a CLI ask QUESTIONS, each (TEXT MULTIPLE CHOICE...)."
  (qwen-companion-test-propose
   "plans/1.md" "" :held t :kind 'question :directory (directory-file-name default-directory)
   :questions (mapcar (pcase-lambda (`(,text ,multiple . ,choices))
                        (list :text text :header "Fruit" :multiple multiple
                              :choices (mapcar (lambda (choice)
                                                 (list :label choice :description "good"))
                                               choices)))
                      questions)))

(defun qwen-companion-plan-test--outcome ()
  "Return the last outcome sent: (OUTCOME TEXT REASON)."
  (let ((payload (car (last (qwen-companion-test-sent 'outcome)))))
    (list (plist-get payload :outcome) (qwen-companion-test-text-in payload)
          (qwen-companion-test-text-in (plist-get payload :reason)))))

(ert-deftest qwen-companion-plan-test-a-long-question-is-cut-in-the-echo-area ()
  "Emacs took no key for seconds to display one of 400 KB there."
  (qwen-companion-plan-test-with
    (let (prompts)
      (should (< (length (qwen-companion-test-messages
                           (qwen-companion-plan-test--ask
                            (list (apply #'concat (make-list 66000 "words ")) nil "a" "b"))))
                 3000))
      (qwen-companion-review)
      (should (< 390000 (buffer-size)))
      (should (< (length (qwen-companion-test-lighter)) 200))
      (cl-letf (((symbol-function 'completing-read)
                 (lambda (prompt &rest _) (push (length prompt) prompts) "a")))
        (qwen-companion-test-press "C-c C-c"))
      (should (< (apply #'max prompts) 1100))
      (should (string-suffix-p "\na" (cadr (qwen-companion-plan-test--outcome)))))))

(ert-deftest qwen-companion-plan-test-hidden-characters-are-shown ()
  (qwen-companion-plan-test-with
    (qwen-companion-plan-test--review "# Plan\n\nDo\u200bit\U000E0041.\n")
    (should (string-match-p "hidden characters: U\\+200B, line 3; U\\+E0041, line 3"
                            (qwen-companion-test-header)))
    (search-forward "Do")
    (should (equal "200B" (get-char-property (point) 'display)))))

(ert-deftest qwen-companion-plan-test-approves-as-it-is-and-edited ()
  "The plan is the text of a buffer, which C-c C-c approves."
  (qwen-companion-plan-test-with
    (qwen-companion-plan-test--propose qwen-companion-plan-test--text)
    (should (string-match-p " plan" (qwen-companion-test-lighter)))
    (qwen-companion-review)
    (should (equal qwen-companion-plan-test--text (buffer-string)))
    (should-not buffer-read-only)
    (should (string-match-p "C-c C-c approve" (qwen-companion-test-header)))
    (qwen-companion-test-press "C-c C-c")
    (should (equal (list 'accepted qwen-companion-plan-test--text nil)
                   (qwen-companion-plan-test--outcome)))
    (should (equal "*terminal*" (buffer-name (window-buffer))))
    (qwen-companion-plan-test--review qwen-companion-plan-test--text)
    (goto-char (point-max))
    (insert "3. Eat.\n")
    (qwen-companion-test-press "C-c C-c")
    (should (equal (concat qwen-companion-plan-test--text "3. Eat.\n")
                   (cadr (qwen-companion-plan-test--outcome))))
    (should-not (qwen-companion-rescue-buffers))))

(ert-deftest qwen-companion-plan-test-asks-for-the-mode-with-a-prefix ()
  "Without, the CLI goes on in the mode before."
  (qwen-companion-plan-test-with
    (qwen-companion-plan-test--review qwen-companion-plan-test--text)
    (qwen-companion-test-choosing "auto-edit"
      (let ((current-prefix-arg '(4))) (qwen-companion-diff-accept)))
    (qwen-companion-plan-test--review qwen-companion-plan-test--text)
    ;; What was chosen for an answer that did not come about is not meant for the next.
    (erase-buffer)
    (qwen-companion-test-choosing "auto-edit"
      (qwen-companion-test-refused "The plan is empty" (let ((current-prefix-arg '(4))) (qwen-companion-diff-accept))))
    (should (qwen-companion-proposals))
    (insert qwen-companion-plan-test--text)
    (qwen-companion-test-press "C-c C-c")
    (should (equal '(auto-edit nil)
                   (mapcar (lambda (payload) (plist-get payload :mode))
                           (qwen-companion-test-sent 'outcome))))
    ;; Its terminal is outside of Emacs.
    (should-not (qwen-companion-comments-on-type-key
                 (list :id (plist-get (car (last (qwen-companion-test-sent 'outcome))) :id)
                       :key "1")))))

(ert-deftest qwen-companion-plan-test-refuses-with-comments ()
  "They are the reason, and the next plan is a difference, with the comments."
  (qwen-companion-plan-test-with
    (qwen-companion-plan-test--review qwen-companion-plan-test--text)
    (qwen-companion-test-comment "plums" "No plums")
    (qwen-companion-test-press "C-c C-k")
    (should (equal '(rejected nil "I have rejected your plan, for these reasons:\n\nplan:3\n> 1. Buy plums.\nNo plums\n")
                   (qwen-companion-plan-test--outcome)))
    ;; Nothing is sent as a prompt too.
    (should-not (qwen-companion-test-sent 'prompt))
    (qwen-companion-plan-test--review (string-replace "plums" "pears" qwen-companion-plan-test--text))
    (should (string-match-p "Buy pears" (buffer-string)))
    (should (derived-mode-p 'qwen-companion-unified-mode))
    (should (string-match-p "Buy plums" (buffer-string)))
    (should (cl-some (lambda (overlay)
                       (string-match-p "No plums" (or (overlay-get overlay 'after-string) "")))
                     (overlays-in (point-min) (point-max))))
    ;; They are not sent again.
    (qwen-companion-diff-reject)
    (should (equal '(rejected nil nil) (qwen-companion-plan-test--outcome)))))

(ert-deftest qwen-companion-plan-test-sends-comments-with-an-approval ()
  "The model reads them with the result of its tool, not after the work."
  (qwen-companion-plan-test-with
    (qwen-companion-plan-test--review qwen-companion-plan-test--text)
    (qwen-companion-test-comment "Bake" "At 200 degrees")
    (qwen-companion-diff-accept)
    (should (string-match-p "At 200 degrees" (nth 2 (qwen-companion-plan-test--outcome))))
    ;; The next one is another plan.
    (qwen-companion-plan-test--review "Another\n")
    (should (equal "Another\n" (buffer-string)))))

(ert-deftest qwen-companion-plan-test-rescues-edits ()
  "The end of a plan is told with its reason, and an edited text stays in a buffer."
  (qwen-companion-plan-test-with
    (let ((proposal (qwen-companion-plan-test--propose qwen-companion-plan-test--text)))
      (qwen-companion-test-said "plan of .*: it was cancelled"
        (qwen-companion-proposal-on-orphan
         (list :id (qwen-companion-proposal-id proposal) :reason "it was cancelled in the terminal")))
      (should-not (buffer-live-p (qwen-companion-proposal-buffer proposal))))
    (let ((proposal (qwen-companion-plan-test--propose qwen-companion-plan-test--text)))
      (qwen-companion-test-edit proposal "3. Eat.\n")
      (qwen-companion-proposal-on-orphan (list :id (qwen-companion-proposal-id proposal)))
      (should (equal (list (qwen-companion-proposal-buffer proposal)) (qwen-companion-rescue-buffers))))
    ;; One that was approved and did not get there.
    (let ((proposal (qwen-companion-plan-test--propose "Plan\n")))
      (qwen-companion-test-edit proposal "Mine\n")
      (qwen-companion-diff-accept proposal)
      (qwen-companion-proposal-on-orphan (list :id (qwen-companion-proposal-id proposal)))
      (should (qwen-companion-test-buffers-with "Plan\nMine\n")))))

(defmacro qwen-companion-plan-test--ending (reader answer proposal &rest body)
  "Run BODY, in which PROPOSAL ends while READER reads ANSWER."
  (declare (indent 3) (debug t))
  `(cl-letf (((symbol-function ,reader)
              (lambda (&rest _)
                (let ((buffer (current-buffer)))
                  (qwen-companion-proposal-on-orphan
                   (list :id (qwen-companion-proposal-id ,proposal) :reason "it was cancelled"))
                  ;; As what reads does at its end.
                  (set-buffer buffer))
                ,answer)))
     ,@body))

(ert-deftest qwen-companion-plan-test-copies-an-answer-that-comes-too-late ()
  (qwen-companion-plan-test-with
    (let* ((kill-ring nil)
           (proposal (qwen-companion-plan-test--ask '("Which?" nil "plums" "pears")
                                                    '("And?" nil "bake" "eat"))))
      (qwen-companion-review)
      (qwen-companion-plan-test--ending 'completing-read "my own words" proposal
        (qwen-companion-test-refused "ended before you answered; your text is in the kill ring"
          (qwen-companion-test-press "C-c C-c")))
      (should (equal '("Which?\nmy own words") kill-ring))
      (should-not (qwen-companion-test-sent 'outcome)))
    (let ((kill-ring nil)
          (proposal (qwen-companion-plan-test--review qwen-companion-plan-test--text)))
      (qwen-companion-plan-test--ending 'read-string "No plums" proposal
        (qwen-companion-test-refused "your text is in the kill ring"
          (qwen-companion-diff-comment)))
      (should (equal '("No plums") kill-ring)))))

(ert-deftest qwen-companion-plan-test-says-why-an-answer-came-too-late ()
  "An approval that lost to an answer in the terminal loses nothing, unless it was edited."
  (qwen-companion-plan-test-with
    (let ((proposal (qwen-companion-plan-test--propose qwen-companion-plan-test--text)))
      (qwen-companion-diff-accept proposal)
      (qwen-companion-test-said "plan of .*: answered in the terminal"
        (qwen-companion-proposal-on-orphan
         (list :id (qwen-companion-proposal-id proposal) :reason "answered in the terminal")))
      (should-not (qwen-companion-rescue-buffers)))
    (let ((proposal (qwen-companion-plan-test--propose qwen-companion-plan-test--text)))
      (qwen-companion-test-edit proposal "3. Eat.\n")
      (qwen-companion-diff-accept proposal)
      (qwen-companion-test-said "answered in the terminal"
        (qwen-companion-proposal-on-orphan
         (list :id (qwen-companion-proposal-id proposal) :reason "answered in the terminal")))
      (should (qwen-companion-test-buffers-with
               (concat qwen-companion-plan-test--text "3. Eat.\n"))))))

(ert-deftest qwen-companion-plan-test-leaves-the-answer-to-the-terminal ()
  "The buffer stays, and its header line names the terminal."
  (qwen-companion-plan-test-with
    (let ((proposal (qwen-companion-plan-test--review qwen-companion-plan-test--text)))
      (qwen-companion-test-press "C-c C-t")
      (should (equal (list (list :id (qwen-companion-proposal-id proposal)))
                     (qwen-companion-test-sent 'release)))
      (should (qwen-companion-proposal-open-p proposal))
      (qwen-companion-proposal-on-released
       (list :id (qwen-companion-proposal-id proposal) :reason "its terminal asks now" :answerable t))
      (should (string-match-p "its terminal asks now" (qwen-companion-test-header)))
      (qwen-companion-diff-accept)
      (should (eq 'accepted (car (qwen-companion-plan-test--outcome)))))
    (let ((proposal (qwen-companion-plan-test--propose qwen-companion-plan-test--text)))
      (qwen-companion-proposal-on-released
       (list :id (qwen-companion-proposal-id proposal) :reason "in its terminal only"))
      (dolist (answer '(qwen-companion-diff-accept qwen-companion-diff-reject))
        (qwen-companion-test-refused "Answer in the terminal: in its terminal only"
          (funcall answer proposal)))
      (should (qwen-companion-proposal-open-p proposal)))))

(ert-deftest qwen-companion-plan-test-the-terminal-asks-when-the-process-is-gone ()
  "The hook that waits ends with the process, and no hook tells of the dialog that follows."
  (qwen-companion-plan-test-with
    (qwen-companion-test-with-sessions
        '((:id "s" :client "qwen" :state (:activity working :since 5 :prompt "Plan it"))
          (:id "t" :client "qwen" :state (:activity working :since 5)))
      (qwen-companion-plan-test--propose "# Plan\n" :session "s")
      (qwen-companion-plan-process-gone)
      (should (equal '((asking "whether to carry out its plan" "Plan it") (working nil nil))
                     (mapcar (lambda (session)
                               (let ((state (qwen-companion-session-state session)))
                                 (list (qwen-companion-cli-state-activity state)
                                       (qwen-companion-cli-state-question state)
                                       (qwen-companion-cli-state-prompt state))))
                             (qwen-companion-backend-sessions)))))))

(ert-deftest qwen-companion-plan-test-waits-with-nine-others ()
  "The plans of ten CLIs wait, each for its own answer."
  (qwen-companion-plan-test-with
    (dotimes (number 10)
      (qwen-companion-plan-test--propose (format "Plan %d\n" number)
                                         :session (format "session-%d" number)))
    (should (string-match-p "!10]" (qwen-companion-test-lighter)))
    (dotimes (number 10)
      (qwen-companion-review)
      (should (equal (format "Plan %d\n" number) (buffer-string)))
      (qwen-companion-test-press "C-c C-c"))
    (should-not (qwen-companion-proposals))
    (should (= 10 (length (qwen-companion-test-outcomes))))))

(ert-deftest qwen-companion-plan-test-stands-among-the-proposals ()
  "In the list, in the words that announce it, and beside a review of its CLI."
  (qwen-companion-plan-test-with
    (let ((project (file-name-nondirectory (directory-file-name default-directory))))
      (qwen-companion-test-propose "a.txt" "2\n")
      (qwen-companion-test-said (format "qwen asks you to approve the plan of %s" project)
        (qwen-companion-plan-test--propose qwen-companion-plan-test--text))
      (qwen-companion-test-said "qwen asks: Which \\\\u202E\\?"
        (qwen-companion-plan-test--ask '("Which \u202e?" nil "a" "b")))
      (should (= 3 (length (qwen-companion-proposals))))
      (qwen-companion-diffs)
      (should (equal '("a.txt" "plan" "question")
                     (mapcar (lambda (entry) (aref (cadr entry) 0)) tabulated-list-entries)))
      (should (equal project (aref (cadr (nth 1 tabulated-list-entries)) 2)))
      (qwen-companion-list-close 'qwen-companion-diffs-mode)
      ;; Each is answered by itself.
      (qwen-companion-diff-accept (cl-find 'plan (qwen-companion-proposals)
                                           :key #'qwen-companion-proposal-kind))
      (should (equal qwen-companion-plan-test--text (cadr (qwen-companion-plan-test--outcome))))
      (should (equal '(file question)
                     (mapcar #'qwen-companion-proposal-kind (qwen-companion-proposals)))))))

(ert-deftest qwen-companion-plan-test-shows-odd-plans-safely ()
  "Long lines, control characters, local variables and links do nothing."
  (qwen-companion-plan-test-with
    (dolist (text (list (make-string 1000000 ?x) "one line" "\u0000\e[31m\u202eabc\n"
                        (concat "[x](http://y) [[elisp:(error)]]\n# Local " "Variables:\n# eval: (error \"x\")\n# End:\n")))
      (let ((proposal (qwen-companion-plan-test--review text)))
        (should (equal text (buffer-string)))
        (when (string-search "\u202e" text)
          (should (string-match-p "U\\+202E" (qwen-companion-test-header))))
        ;; Refused, the next would be a difference to it.
        (qwen-companion-diff-accept proposal)))))

(ert-deftest qwen-companion-plan-test-asks-questions-in-the-minibuffer ()
  "One of the choices, several, or own words."
  (qwen-companion-plan-test-with
    (qwen-companion-plan-test--ask '("Which fruit?" nil "plums" "pears")
                                   '("Which colours?" t "red" "blue"))
    (qwen-companion-review)
    (should buffer-read-only)
    (should (string-match-p "Which fruit\\?\n- plums: good\n- pears: good\n" (buffer-string)))
    (cl-letf (((symbol-function 'completing-read)
               (lambda (prompt choices &rest _)
                 (should (string-prefix-p "Which fruit?" prompt))
                 (should (member "pears" (all-completions "" choices)))
                 "quinces"))
              ((symbol-function 'completing-read-multiple)
               (lambda (&rest _) '("red" "blue"))))
      (qwen-companion-test-press "C-c C-c"))
    (should (equal '(accepted "Which fruit?\nquinces\n\nWhich colours?\nred, blue" nil)
                   (qwen-companion-plan-test--outcome)))))

(provide 'qwen-companion-plan-test)
;;; qwen-companion-plan-test.el ends here
